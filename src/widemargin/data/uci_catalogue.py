"""The 15 UCI sets of the ArcGrad paper's Table II: shape, SHA-256 of the cleaned table, cleaner, licence, citation.

The preprocessing is inferred: the rows and columns dropped are the ones that give the paper's counts. One
doubt remains, Hayes-Roth: its three features here are age, education and marital status, the diagnostic ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from .uci_clean import (
    Cleaner,
    generate_balance_scale,
    has_all_measurements,
    is_complete,
    text_cleaner,
    workbook_cleaner,
)
from .uci_sources import UCI_SOURCES, UciSource

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
        object.__setattr__(self, "file", self.file_name or f"{self.name}.csv")

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
