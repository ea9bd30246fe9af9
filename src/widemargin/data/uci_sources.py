"""Where the originals of the UCI sets are: the archive of today, its old addresses, and a copy elsewhere.

Any of them may go or change; the SHA-256 of the cleaned table decides whether what came is the set.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

UCI = "https://archive.ics.uci.edu/static/public"
UCI_OLD = "https://archive.ics.uci.edu/ml/machine-learning-databases"
GITHUB = "https://raw.githubusercontent.com"
BROWNLEE = f"{GITHUB}/jbrownlee/Datasets/d20fcb6402ae34e653d4513b00f39257bb37ed7f"
RUPAKC = f"{GITHUB}/rupakc/UCI-Data-Analysis/b2937bc0f36f570b5a6bb4049656f5239a1f334c"
FOREST_COPY = f"{RUPAKC}/Forest Mapping Dataset/Forest Type Mapping"

KNOWLEDGE = "Data_User_Modeling_Dataset_Hamdi Tolga KAHRAMAN.xls"
WHOLESALE = "Wholesale customers data.csv"


@dataclass(frozen=True)
class Source:
    """One place that has the originals: addresses, and which files to take where these are archives."""

    urls: tuple[str, ...]
    members: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Names the originals have when they are downloaded by hand."""
        return tuple(unquote(url.rpartition("/")[2]) for url in self.urls)


def _source(urls: str | tuple[str, ...], files: tuple[str, ...]) -> Source:
    addresses = tuple(quote(url, safe=":/+") for url in ((urls,) if isinstance(urls, str) else urls))
    return Source(addresses, files if addresses[0].endswith(".zip") else ())


def _at(
    archive: str, files: tuple[str, ...], old: str | tuple[str, ...], copy: str | tuple[str, ...]
) -> tuple[Source, ...]:
    """The three places; `files` are taken from those that are archives."""
    olds = (old,) if isinstance(old, str) else old
    places = (f"{UCI}/{archive}", tuple(f"{UCI_OLD}/{path}" for path in olds), copy)
    return tuple(_source(urls, files) for urls in places)


_HAYES_ROTH = _at(
    "44/hayes+roth.zip",
    ("hayes-roth.data", "hayes-roth.test"),
    ("hayes-roth/hayes-roth.data", "hayes-roth/hayes-roth.test"),
    f"{GITHUB}/neilprado/machineLearning/7c82a0b295d812619aa4f2cee71bf35aef94d5d0/hayes-roth.data",
)

SOURCES: dict[str, tuple[Source, ...]] = {
    "pima_indians_diabetes": (Source((f"{BROWNLEE}/pima-indians-diabetes.csv",)),),  # UCI offers it no longer
    "hayes_roth": _HAYES_ROTH,
    "hayes_roth_with_hobby": _HAYES_ROTH,
    "user_knowledge_modeling": _at(
        "257/user+knowledge+modeling.zip",
        (KNOWLEDGE,),
        f"00257/{KNOWLEDGE}",
        f"{GITHUB}/kryptonmlt/mastersteamproject/3c53743c6d53c2b4d46596e891ad9ae130459bfd/{KNOWLEDGE}",
    ),
    "breast_cancer_wisconsin": _at(
        "16/breast+cancer+wisconsin+prognostic.zip",
        ("wpbc.data",),
        "breast-cancer-wisconsin/wpbc.data",
        f"{RUPAKC}/Breast Cancer Dataset/Winsconsin Breast Cancer/wpbc.data",
    ),
    "wholesale_customers": _at(
        "292/wholesale+customers.zip",
        (WHOLESALE,),
        f"00292/{WHOLESALE}",
        f"{GITHUB}/sidikafirat/Wholesale-Classification/f85ac57dd751b1f547114fc1e5bb54ddd57b5942/{WHOLESALE}",
    ),
    "teaching_assistant_evaluation": _at(
        "100/teaching+assistant+evaluation.zip",
        ("tae.data",),
        "tae/tae.data",
        f"{GITHUB}/nayankaushal/ta-performance/d36be2bfb01ab004a017b2db121f79471abb0a2b/tae.data",
    ),
    "banknote_authentication": _at(
        "267/banknote+authentication.zip",
        ("data_banknote_authentication.txt",),
        "00267/data_banknote_authentication.txt",
        f"{BROWNLEE}/banknote_authentication.csv",
    ),
    "congressional_voting_records": _at(
        "105/congressional+voting+records.zip",
        ("house-votes-84.data",),
        "voting-records/house-votes-84.data",
        f"{GITHUB}/giorgosalif/DeepLearningDeree/b27df8a5a1e24091b92930ddb3c43dba8477bc9c/house-votes-84.data",
    ),
    "website_phishing": _at(
        "379/website+phishing.zip",
        ("PhishingData.arff",),
        "00379/PhishingData.arff",
        f"{GITHUB}/RawatMeghna/Phishing-Websites-Detection/ed524cec058a11daff0aca2f03befec88869f912/PhishingData.arff",
    ),
    "haberman": _at(
        "43/haberman+s+survival.zip", ("haberman.data",), "haberman/haberman.data", f"{BROWNLEE}/haberman.csv"
    ),
    "iris_uci": _at("53/iris.zip", ("iris.data",), "iris/iris.data", f"{BROWNLEE}/iris.csv"),
    "breast_tissue": _at(
        "192/breast+tissue.zip",
        ("BreastTissue.xls",),
        "00192/BreastTissue.xls",
        f"{GITHUB}/Anirudh257/MDO-oversampling/1a842424a544e56881783e8ceee69f50d7a65ba7/BreastTissue.xls",
    ),
    "vertebral_column": _at(
        "212/vertebral+column.zip",
        ("column_3C_weka.arff",),
        "00212/vertebral_column_data.zip",
        f"{GITHUB}/ramyeturi/Vertebral_column_data/7d635494fdf309b030d2f72a342a8c1b3786194b/archive.zip",
    ),
    "forest_type_mapping": _at(
        "333/forest+type+mapping.zip",
        ("training.csv", "testing.csv"),
        "00333/ForestTypes.zip",
        (f"{FOREST_COPY}/testing.csv", f"{FOREST_COPY}/training.csv"),  # this copy has the two names swapped
    ),
    "balance_scale": (),  # generated from its definition
}
