"""Competent is who is right more often than luck explains, and than guessing."""

import numpy as np

from sgoif.evidence import measure_competence


def test_a_few_lucky_answers_are_no_competence():
    few, many = (measure_competence(np.arange(n) % 10 < 7, np.arange(n) % 2, 2) for n in (10, 1000))
    assert few.accuracy == many.accuracy == 0.7 and few.skill == many.skill > 1 / 3
    assert not few.is_competent and "luck" in few.why_not
    assert many.is_competent and many.why_not is None
