"""The 15 UCI sets of the ArcGrad paper's Table II: where their originals are, how these are cleaned, what they must be.

Sources: the archive of today, its old addresses, and a copy elsewhere. Any of them may go or change; the SHA-256 of
the cleaned table decides whether what came is the set. A cleaner takes the bytes of the originals in order and gives
that table as text: comma-separated, one header, digits as in the source, label last.

The preprocessing is inferred: the rows and columns dropped are the ones that give the paper's counts. One
doubt remains, Hayes-Roth: its three features here are age, education and marital status, the diagnostic ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from itertools import product
from urllib.parse import quote, unquote
from zipfile import ZipFile

from ...io.bounded import check_zip_size, read_zip_member
from ...io.errors import InputError
from .table import parse_number

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


# ---------------------------------------------------------------- cleaners

Cleaner = Callable[[Sequence[bytes]], str]
UciRow = list[str]

MAX_UCI_BYTES = 64 << 20  # bytes of the originals of a set, unpacked
VOTE_CODES = {"y": "1", "n": "0"}
CLASS_SPELLINGS = {"Very Low": "very_low"}  # one class, written in two ways in the two sheets of its workbook


def text_cleaner(
    header: str, width: int, features: Sequence[int], label: int, keep_row: Callable[[UciRow], bool] | None = None
) -> Cleaner:
    """A cleaner for text: rows of at least `width` fields, of which those to keep become features and label."""

    def clean(files: Sequence[bytes]) -> str:
        rows = []
        for data in files:
            for place, fields in enumerate(_iter_uci_rows(data)):
                if len(fields) < width:
                    raise InputError(f"a line has {len(fields)} fields, {width} are expected")
                values = [VOTE_CODES.get(fields[feature], fields[feature]) for feature in features]
                if place == 0 and any(parse_number(value) is None and value != "?" for value in values):
                    continue  # a header
                rows.append([*values, fields[label]])
        return _join_csv(header, (row for row in rows if keep_row is None or keep_row(row)))

    return clean


def is_complete(row: UciRow) -> bool:
    """Whether no field is missing."""
    return "?" not in row


def has_all_measurements(row: UciRow) -> bool:
    """Whether no measurement of Pima Indians Diabetes is zero, which stands for missing there."""
    return all(float(value) != 0 for value in row[1:6])


def workbook_cleaner(header: str, sheets: Sequence[str], features: Sequence[int], label: int) -> Cleaner:
    """A cleaner for .xls: the same of the sheets named; numbers in the shortest form that gives them back."""

    def clean(files: Sequence[bytes]) -> str:
        import xlrd

        rows = []
        with xlrd.open_workbook(file_contents=files[0], logfile=StringIO()) as book:
            for sheet in map(book.sheet_by_name, sheets):
                for cells in map(sheet.row_values, range(sheet.nrows)):
                    values = [cells[feature] for feature in features]
                    if all(isinstance(value, float) for value in values):  # no header and no empty line
                        name = str(cells[label]).strip()
                        rows.append([*map(repr, values), CLASS_SPELLINGS.get(name, name)])
        return _join_csv(header, rows)

    return clean


def generate_balance_scale(files: Sequence[bytes] = ()) -> str:
    """Balance Scale needs no original: every weight and distance from 1 to 5 on both arms, and which arm goes down."""
    rows = []
    for left, left_distance, right, right_distance in product(range(1, 6), repeat=4):
        pull = left * left_distance - right * right_distance
        label = "L" if pull > 0 else "R" if pull < 0 else "B"
        rows.append([*map(str, (left, left_distance, right, right_distance)), label])
    return _join_csv("left_weight,left_distance,right_weight,right_distance,label", rows)


def find_zip_members(archive: bytes, names: Sequence[str], is_nested: bool = False) -> list[bytes]:
    """Files of a zip archive by their names, wherever they lie in it, also in an archive inside (and no deeper)."""
    found: dict[str, bytes] = {}
    with ZipFile(BytesIO(archive)) as pack:
        for entry in check_zip_size(pack, MAX_UCI_BYTES, "the archive").infolist():
            name = entry.filename.rpartition("/")[2]
            if name in names:
                found.setdefault(name, read_zip_member(pack, entry))
            elif name.lower().endswith(".zip") and not is_nested:
                inner = read_zip_member(pack, entry)
                with ZipFile(BytesIO(inner)) as inside:
                    if {inside_name.rpartition("/")[2] for inside_name in inside.namelist()} >= set(names):
                        return find_zip_members(inner, names, is_nested=True)
    for name in names:
        if name not in found:
            raise InputError(f"no {name} in the archive")
    return [found[name] for name in names]


def _iter_uci_rows(data: bytes) -> Iterator[UciRow]:
    """Fields of the lines of comma- or semicolon-separated text or ARFF, without blank lines and comments."""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("%")]
    begins = next((place + 1 for place, line in enumerate(lines) if line.lower() == "@data"), 0)
    for line in lines[begins:]:
        yield [field.strip() for field in re.split("[,;]", line)]


def _join_csv(header: str, rows: Iterable[UciRow]) -> str:
    return "".join(f"{line}\n" for line in (header, *(",".join(row) for row in rows)))


# ---------------------------------------------------------------- the sets

PIMA_COLUMNS = "pregnancies,glucose,blood_pressure,skin_thickness,insulin,bmi,diabetes_pedigree,age,label"
NUCLEUS_MEASUREMENTS = (
    *("radius", "texture", "perimeter", "area", "smoothness"),
    *("compactness", "concavity", "concave_points", "symmetry", "fractal_dimension"),
)
NUCLEUS_COLUMNS = ",".join(f"{what}_{of}" for of in ("mean", "se", "worst") for what in NUCLEUS_MEASUREMENTS)
WPBC_COLUMNS = f"time,{NUCLEUS_COLUMNS},tumor_size,lymph_node_status,label"
TEACHING_COLUMNS = "native_english_speaker,course_instructor,course,summer_or_regular_semester,class_size,label"
VOTING_COLUMNS = (
    "handicapped_infants,water_project_cost_sharing,adoption_of_the_budget_resolution,physician_fee_freeze,"
    "el_salvador_aid,religious_groups_in_schools,anti_satellite_test_ban,aid_to_nicaraguan_contras,mx_missile,"
    "immigration,synfuels_corporation_cutback,education_spending,superfund_right_to_sue,crime,duty_free_exports,"
    "export_administration_act_south_africa,label"
)
PHISHING_COLUMNS = (
    "SFH,popUpWidnow,SSLfinal_State,Request_URL,URL_of_Anchor,web_traffic,URL_Length,age_of_domain,"
    "having_IP_Address,label"
)
VERTEBRAL_COLUMNS = (
    "pelvic_incidence,pelvic_tilt,lumbar_lordosis_angle,sacral_slope,pelvic_radius,degree_spondylolisthesis,label"
)
FOREST_BANDS = range(1, 10)
FOREST_COLUMNS = ",".join(
    [f"b{band}" for band in FOREST_BANDS]
    + [f"pred_minus_obs_{kind}_b{band}" for kind in "HS" for band in FOREST_BANDS]
    + ["label"]
)


@dataclass(frozen=True)
class UciSet:
    """One set: what it must be and how its originals are cleaned."""

    name: str
    paper_name: str  # empty for a variant the paper does not have
    shape: tuple[int, int, int]  # classes, features, rows, as in Table II
    sha256: str
    clean: Cleaner
    citation: str
    licence: str = "CC BY 4.0"
    file_name: str = ""  # of the cleaned table; by default the name with .csv

    def __post_init__(self) -> None:
        object.__setattr__(self, "file_name", self.file_name or f"{self.name}.csv")

    @property
    def sources(self) -> tuple[UciSource, ...]:
        """Places that have the originals, best first."""
        return UCI_SOURCES[self.name]


_TABLE1_ENTRIES = (
    UciSet(
        "pima_indians_diabetes",
        "PimaIndiansDiabetes",
        (2, 8, 392),
        "a037727fbb49862da360f31c92bf1a74512cb2c678cc13624f35b1e9d9b64603",
        text_cleaner(PIMA_COLUMNS, 9, range(8), 8, has_all_measurements),
        "J. W. Smith et al., Using the ADAP learning algorithm to forecast the onset of diabetes mellitus, 1988",
        "CC0 (original owner: NIDDK)",
    ),
    UciSet(
        "hayes_roth",
        "Hayes-Roth",
        (3, 3, 160),
        "b2c94273076495ca0de0dafa929432158bc85ad5f4387b156644236502279500",
        text_cleaner("age,educational_level,marital_status,label", 5, (-4, -3, -2), -1),
        "B. and F. Hayes-Roth, Concept learning and the recognition and classification of exemplars, 1977",
    ),
    UciSet(
        "user_knowledge_modeling",
        "UserKnowledgeModeling",
        (4, 5, 403),
        "888223fe0b729c5cc6e79819265fa8f0b2fb0feeb22edbb235d040d8a1f3d46a",
        workbook_cleaner("STG,SCG,STR,LPR,PEG,label", ("Training_Data", "Test_Data"), range(5), 5),
        "H. T. Kahraman, S. Sagiroglu, I. Colak, The development of intuitive knowledge classifier, 2013",
    ),
    UciSet(
        "breast_cancer_wisconsin",
        "BreastCancerWisconsin",
        (2, 33, 194),
        "8d346a11d3882387d74df47c068ee3c0c45a71fcf718e0c84e383e9b131c5e4b",
        text_cleaner(WPBC_COLUMNS, 35, range(2, 35), 1, is_complete),
        "W. H. Wolberg, W. N. Street, O. L. Mangasarian, Breast Cancer Wisconsin (Prognostic), 1995",
    ),
    UciSet(
        "wholesale_customers",
        "WholesaleCustomers",
        (2, 7, 440),
        "f1c045ee8d9d22c5b500d13eb447f529ccbe7074dcbb4d7e482636eb6028f6b8",
        text_cleaner("region,fresh,milk,grocery,frozen,detergents_paper,delicassen,label", 8, range(1, 8), 0),
        "M. G. M. S. Cardoso, Wholesale customers, 2013",
    ),
    UciSet(
        "teaching_assistant_evaluation",
        "TeachingAssistantEvaluation",
        (3, 5, 151),
        "745e98a655f3952b686871ddd1c5409990274092b0a7bdb430d5de10384b5109",
        text_cleaner(TEACHING_COLUMNS, 6, range(5), 5),
        "W.-Y. Loh, Y.-S. Shih, Split selection methods for classification trees, 1997",
    ),
    UciSet(
        "banknote_authentication",
        "BanknoteAuthentication",
        (2, 4, 1372),
        "fd54cdab8b3a4033b936d4f85c13a2a7cccbfabb55ea17e3cbed63df2043354c",
        text_cleaner("variance,skewness,curtosis,entropy,label", 5, range(4), 4),
        "V. Lohweg, Banknote authentication, 2012",
    ),
    UciSet(
        "congressional_voting_records",
        "CongressionalVotingRecords",
        (2, 16, 232),
        "ae339b163e9b967ddfc0cb52dab605e8539d0db744dd5f83ea2db6d9a5c2e1ce",
        text_cleaner(VOTING_COLUMNS, 17, range(1, 17), 0, is_complete),
        "J. Schlimmer, Congressional voting records, 1987, after the Congressional Quarterly Almanac of 1984",
    ),
    UciSet(
        "website_phishing",
        "WebsitePhishing",
        (3, 9, 1353),
        "b315caa0d8655d52e5448e8fb3dc71c43070514790b0ae66d2d19c4767a26422",
        text_cleaner(PHISHING_COLUMNS, 10, range(9), 9),
        "N. Abdelhamid, A. Ayesh, F. Thabtah, Phishing detection based associative classification data mining, 2014",
    ),
    UciSet(
        "haberman",
        "Haberman",
        (2, 3, 306),
        "afe0970691b4d967c690fe1daaf57187e631f38e485c78d24cb03431b1d5133f",
        text_cleaner("age,operation_year,positive_axillary_nodes,label", 4, range(3), 3),
        "S. J. Haberman, Generalized residuals for log-linear models, 1976",
    ),
    UciSet(
        "iris_uci",
        "Iris",
        (3, 4, 150),
        "d02c3919eb2e2e76d1c50b4159aa59dd53a96656c42c918fb830f16a6eef63c4",
        text_cleaner("sepal_length,sepal_width,petal_length,petal_width,label", 5, range(4), 4),
        "R. A. Fisher, The use of multiple measurements in taxonomic problems, 1936",
        file_name="iris.csv",
    ),
    UciSet(
        "breast_tissue",
        "BreastTissue",
        (6, 9, 106),
        "e76ac551fcaf9f8c84f6631afccb8b4af96cbef0379bc236a6999048fd4e8daa",
        workbook_cleaner("I0,PA500,HFS,DA,Area,A_DA,Max_IP,DR,P,label", ("Data",), range(2, 11), 1),
        "J. Estrela da Silva et al., Classification of breast tissue by electrical impedance spectroscopy, 2000",
    ),
    UciSet(
        "vertebral_column",
        "VertebralColumn",
        (3, 6, 310),
        "8f9c9535cbfede7d1ada504dfad3f22f15c819ae06ea7b85de40be5b76dfc2cb",
        text_cleaner(VERTEBRAL_COLUMNS, 7, range(6), 6),
        "G. A. Barreto, A. R. da Rocha Neto, H. A. F. da Mota Filho, Vertebral column, 2011",
    ),
    UciSet(
        "forest_type_mapping",
        "ForestTypeMapping",
        (4, 27, 523),
        "e4e7e675a6d807d7d417a6e718b7aa92317a982b6702963f67520eaeeccd8d32",
        text_cleaner(FOREST_COLUMNS, 28, range(1, 28), 0),
        "B. Johnson, R. Tateishi, Z. Xie, Using geographically weighted variables for image classification, 2012",
    ),
    UciSet(
        "balance_scale",
        "BalanceScale",
        (3, 4, 625),
        "92b6a2982148d41cc2a9a0656b98bd14d23b20db1ae1ca08c732e44b4d40a9f0",
        generate_balance_scale,
        "R. S. Siegler, Three aspects of cognitive development, 1976",
    ),
)
_HAYES_ROTH_WITH_HOBBY = UciSet(
    "hayes_roth_with_hobby",
    "",
    (3, 4, 160),
    "4d2e536dbd609cb2d1aa8a10d3ee53c2563191ffdd6b36354a676db38d475b8f",
    text_cleaner("hobby,age,educational_level,marital_status,label", 5, (-5, -4, -3, -2), -1),
    "B. and F. Hayes-Roth, Concept learning and the recognition and classification of exemplars, 1977",
)

UCI_SETS = {entry.name: entry for entry in (*_TABLE1_ENTRIES, _HAYES_ROTH_WITH_HOBBY)}
TABLE1_SET_NAMES = tuple(entry.name for entry in _TABLE1_ENTRIES)
"""The sets of the paper's Tables I and II, in its order."""
