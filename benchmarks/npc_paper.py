"""What the paper's tables say: rows by table, figures in percent unless said otherwise."""

from typing import Any

Row = dict[str, Any]

TABLE_3: list[Row] = [
    {"threat": "l1", "theorem_2.4": None, "lemma_Rd": 9.71, "lemma_box": 11.77, "exact": 12.11},
    {"threat": "l2", "theorem_2.4": 0.39, "lemma_Rd": 1.86, "lemma_box": 1.96, "exact": 1.99},
    {"threat": "linf", "theorem_2.4": None, "lemma_Rd": 0.14, "lemma_box": 0.16, "exact": 0.17},
]
TABLE_4: list[Row] = [
    {"threat": "l1", "direct": 43.8, "problems": 10195, "per_point": 1.86, "ms_per_point": 540.0},
    {"threat": "l2", "direct": 32.6, "problems": 11630, "per_point": 1.77, "ms_per_point": 490.0},
    {
        "threat": "linf",
        "direct": 21.3,
        "problems": 21081,
        "per_point": 2.75,
        "ms_per_point": 1300.0,
    },
]
TABLE_5: list[Row] = [
    {"model": "l2-PNPC", "clean": 97.3, "cra_1.5": 75.5, "cra_1.58": 73.0, "cra_2": 56.1},
    {"model": "l2-GLVQ", "clean": 95.8, "cra_1.5": 69.7, "cra_1.58": 67.1, "cra_2": 53.5},
    {"model": "1-NN", "clean": 96.9, "cra_1.5": 52.1, "cra_1.58": 47.3, "cra_2": 23.7},
    {"model": "GloRob", "clean": 97.0, "cra_1.5": None, "cra_1.58": 62.8, "cra_2": None},
    {"model": "OrthConv", "clean": 98.1, "cra_1.5": None, "cra_1.58": 61.0, "cra_2": None},
    {"model": "LocLip", "clean": 96.3, "cra_1.5": None, "cra_1.58": 55.8, "cra_2": None},
    {"model": "BCP", "clean": 92.4, "cra_1.5": None, "cra_1.58": 47.9, "cra_2": None},
    {"model": "CAP", "clean": 88.1, "cra_1.5": None, "cra_1.58": 44.5, "cra_2": None},
    {"model": "SmoothLip 0.5*", "clean": 98.7, "cra_1.5": 81.8, "cra_1.58": None, "cra_2": 0.0},
    {"model": "SmoothLip 1*", "clean": 93.7, "cra_1.5": 62.7, "cra_1.58": None, "cra_2": 44.9},
]
"""* certified with high probability only."""
TABLE_6: list[Row] = [
    {
        "model": "l2-PNPC",
        "clean": 97.3,
        "l1_1": 96.2,
        "l2_0.3": 95.6,
        "linf_0.1": 85.8,
        "union": 85.8,
    },
    {
        "model": "l2-GLVQ",
        "clean": 95.8,
        "l1_1": 94.2,
        "l2_0.3": 93.2,
        "linf_0.1": 80.9,
        "union": 80.9,
    },
    {"model": "1-NN", "clean": 96.9, "l1_1": 95.0, "l2_0.3": 93.6, "linf_0.1": 78.3, "union": 78.3},
    {
        "model": "MMR-U",
        "clean": 97.0,
        "l1_1": 79.2,
        "l2_0.3": 89.6,
        "linf_0.1": 87.6,
        "union": 79.2,
    },
]
TABLE_7: list[Row] = [
    {"model": "linf-PNPC", "clean": 94.69, "cra_0.1": 91.19, "cra_0.3": 78.68, "cra_0.4": 65.58},
    {"model": "linf-GLVQ", "clean": 96.34, "cra_0.1": 93.52, "cra_0.3": 80.76, "cra_0.4": 61.29},
    {"model": "linf-neuron", "clean": 98.6, "cra_0.1": None, "cra_0.3": 93.1, "cra_0.4": None},
    {"model": "CROWN-IBP", "clean": 98.2, "cra_0.1": None, "cra_0.3": 93.0, "cra_0.4": 87.4},
    {"model": "ReLU-S", "clean": 97.3, "cra_0.1": None, "cra_0.3": 80.7, "cra_0.4": None},
    {"model": "CAP", "clean": 87.4, "cra_0.1": None, "cra_0.3": 56.9, "cra_0.4": None},
]
TABLE_10: list[Row] = [
    {"model": "PNPC", "clean": 49.2, "cra_0.1": 43.9, "cra_36/255": 41.9, "cra_0.25": 36.4},
    {"model": "GLVQ", "clean": 48.6, "cra_0.1": 43.3, "cra_36/255": 41.5, "cra_0.25": 37.9},
    {"model": "1-NN", "clean": 35.7, "cra_0.1": 31.2, "cra_36/255": 29.7, "cra_0.25": 25.7},
    {"model": "GloRob", "clean": 77.0, "cra_0.1": None, "cra_36/255": 58.4, "cra_0.25": None},
    {"model": "LocLip", "clean": 77.4, "cra_0.1": None, "cra_36/255": 60.7, "cra_0.25": None},
    {"model": "BCP", "clean": 65.7, "cra_0.1": None, "cra_36/255": 51.3, "cra_0.25": None},
    {
        "model": "SmoothLip 0.25*",
        "clean": 77.1,
        "cra_0.1": None,
        "cra_36/255": None,
        "cra_0.25": 67.9,
    },
]
TABLE_11: list[Row] = [
    {
        "model": "l2-PNPC",
        "clean": 49.2,
        "l1_2": 42.5,
        "l2_0.1": 41.9,
        "linf_2/255": 32.7,
        "union": 32.7,
    },
    {
        "model": "l2-GLVQ",
        "clean": 48.6,
        "l1_2": 42.3,
        "l2_0.1": 41.5,
        "linf_2/255": 35.2,
        "union": 35.2,
    },
    {
        "model": "1-NN",
        "clean": 35.7,
        "l1_2": 30.0,
        "l2_0.1": 29.7,
        "linf_2/255": 22.5,
        "union": 22.5,
    },
    {
        "model": "MMR-U",
        "clean": 53.0,
        "l1_2": 36.6,
        "l2_0.1": 46.4,
        "linf_2/255": 36.2,
        "union": 35.4,
    },
]
"""The paper's column for l2 at 0.1 repeats Table 10's figures at 36/255."""

TABLES: dict[int, list[Row]] = {
    3: TABLE_3,
    4: TABLE_4,
    5: TABLE_5,
    6: TABLE_6,
    7: TABLE_7,
    10: TABLE_10,
    11: TABLE_11,
}
