"""Where the originals of the UCI sets are: the archive of today, its old addresses, and a copy elsewhere.

Any of them may go or change; the SHA-256 of the cleaned table decides whether what came is the set.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

UCI_URL = "https://archive.ics.uci.edu/static/public"
UCI_OLD_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases"
GITHUB_RAW_URL = "https://raw.githubusercontent.com"
BROWNLEE_URL = f"{GITHUB_RAW_URL}/jbrownlee/Datasets/d20fcb6402ae34e653d4513b00f39257bb37ed7f"
RUPAKC_URL = f"{GITHUB_RAW_URL}/rupakc/UCI-Data-Analysis/b2937bc0f36f570b5a6bb4049656f5239a1f334c"
FOREST_COPY_URL = f"{RUPAKC_URL}/Forest Mapping Dataset/Forest Type Mapping"

KNOWLEDGE_FILE = "Data_User_Modeling_Dataset_Hamdi Tolga KAHRAMAN.xls"
WHOLESALE_FILE = "Wholesale customers data.csv"


@dataclass(frozen=True)
class UciSource:
    """One place that has the originals: addresses, and which files to take where these are archives."""

    urls: tuple[str, ...]
    members: tuple[str, ...] = ()

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names the originals have when they are downloaded by hand."""
        return tuple(unquote(url.rpartition("/")[2]) for url in self.urls)


def _source(urls: str | tuple[str, ...], files: tuple[str, ...]) -> UciSource:
    addresses = tuple(quote(url, safe=":/+") for url in ((urls,) if isinstance(urls, str) else urls))
    return UciSource(addresses, files if addresses[0].endswith(".zip") else ())


def _sources_with_fallbacks(
    archive: str, files: tuple[str, ...], old_paths: str | tuple[str, ...], copy_urls: str | tuple[str, ...]
) -> tuple[UciSource, ...]:
    """The three places; `files` are taken from those that are archives."""
    olds = (old_paths,) if isinstance(old_paths, str) else old_paths
    places = (f"{UCI_URL}/{archive}", tuple(f"{UCI_OLD_URL}/{path}" for path in olds), copy_urls)
    return tuple(_source(urls, files) for urls in places)


_HAYES_ROTH_SOURCES = _sources_with_fallbacks(
    "44/hayes+roth.zip",
    ("hayes-roth.data", "hayes-roth.test"),
    ("hayes-roth/hayes-roth.data", "hayes-roth/hayes-roth.test"),
    f"{GITHUB_RAW_URL}/neilprado/machineLearning/7c82a0b295d812619aa4f2cee71bf35aef94d5d0/hayes-roth.data",
)

UCI_SOURCES: dict[str, tuple[UciSource, ...]] = {
    "pima_indians_diabetes": (UciSource((f"{BROWNLEE_URL}/pima-indians-diabetes.csv",)),),  # UCI offers it no longer
    "hayes_roth": _HAYES_ROTH_SOURCES,
    "hayes_roth_with_hobby": _HAYES_ROTH_SOURCES,
    "user_knowledge_modeling": _sources_with_fallbacks(
        "257/user+knowledge+modeling.zip",
        (KNOWLEDGE_FILE,),
        f"00257/{KNOWLEDGE_FILE}",
        f"{GITHUB_RAW_URL}/kryptonmlt/mastersteamproject/3c53743c6d53c2b4d46596e891ad9ae130459bfd/{KNOWLEDGE_FILE}",
    ),
    "breast_cancer_wisconsin": _sources_with_fallbacks(
        "16/breast+cancer+wisconsin+prognostic.zip",
        ("wpbc.data",),
        "breast-cancer-wisconsin/wpbc.data",
        f"{RUPAKC_URL}/Breast Cancer Dataset/Winsconsin Breast Cancer/wpbc.data",
    ),
    "wholesale_customers": _sources_with_fallbacks(
        "292/wholesale+customers.zip",
        (WHOLESALE_FILE,),
        f"00292/{WHOLESALE_FILE}",
        f"{GITHUB_RAW_URL}/sidikafirat/Wholesale-Classification/f85ac57dd751b1f547114fc1e5bb54ddd57b5942/{WHOLESALE_FILE}",
    ),
    "teaching_assistant_evaluation": _sources_with_fallbacks(
        "100/teaching+assistant+evaluation.zip",
        ("tae.data",),
        "tae/tae.data",
        f"{GITHUB_RAW_URL}/nayankaushal/ta-performance/d36be2bfb01ab004a017b2db121f79471abb0a2b/tae.data",
    ),
    "banknote_authentication": _sources_with_fallbacks(
        "267/banknote+authentication.zip",
        ("data_banknote_authentication.txt",),
        "00267/data_banknote_authentication.txt",
        f"{BROWNLEE_URL}/banknote_authentication.csv",
    ),
    "congressional_voting_records": _sources_with_fallbacks(
        "105/congressional+voting+records.zip",
        ("house-votes-84.data",),
        "voting-records/house-votes-84.data",
        f"{GITHUB_RAW_URL}/giorgosalif/DeepLearningDeree/b27df8a5a1e24091b92930ddb3c43dba8477bc9c/house-votes-84.data",
    ),
    "website_phishing": _sources_with_fallbacks(
        "379/website+phishing.zip",
        ("PhishingData.arff",),
        "00379/PhishingData.arff",
        f"{GITHUB_RAW_URL}/RawatMeghna/Phishing-Websites-Detection/ed524cec058a11daff0aca2f03befec88869f912/PhishingData.arff",
    ),
    "haberman": _sources_with_fallbacks(
        "43/haberman+s+survival.zip", ("haberman.data",), "haberman/haberman.data", f"{BROWNLEE_URL}/haberman.csv"
    ),
    "iris_uci": _sources_with_fallbacks("53/iris.zip", ("iris.data",), "iris/iris.data", f"{BROWNLEE_URL}/iris.csv"),
    "breast_tissue": _sources_with_fallbacks(
        "192/breast+tissue.zip",
        ("BreastTissue.xls",),
        "00192/BreastTissue.xls",
        f"{GITHUB_RAW_URL}/Anirudh257/MDO-oversampling/1a842424a544e56881783e8ceee69f50d7a65ba7/BreastTissue.xls",
    ),
    "vertebral_column": _sources_with_fallbacks(
        "212/vertebral+column.zip",
        ("column_3C_weka.arff",),
        "00212/vertebral_column_data.zip",
        f"{GITHUB_RAW_URL}/ramyeturi/Vertebral_column_data/7d635494fdf309b030d2f72a342a8c1b3786194b/archive.zip",
    ),
    "forest_type_mapping": _sources_with_fallbacks(
        "333/forest+type+mapping.zip",
        ("training.csv", "testing.csv"),
        "00333/ForestTypes.zip",
        (f"{FOREST_COPY_URL}/testing.csv", f"{FOREST_COPY_URL}/training.csv"),  # this copy has the two names swapped
    ),
    "balance_scale": (),  # generated from its definition
}
