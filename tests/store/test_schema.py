"""The store writes what training emits, under the names that training gives it."""

import pytest

from sgoif import records
from sgoif.errors import StoreError
from sgoif.store import schema
from sgoif.training import recorder, visits


def test_the_signals_are_those_of_training_in_its_order():
    assert schema.SIGNALS == records.SIGNALS
    assert schema.MEAN_SIGNALS == recorder.MEAN_SIGNALS
    assert set(schema.CLASSLESS_SIGNALS) == set(schema.MEAN_SIGNALS) - records.CLASS_SIGNALS.keys()
    assert schema.STANDARDISED == visits.STANDARDISED
    assert int(visits._SKIPPED) == schema.FLAGS_NOT_USABLE
    assert int(records.VisitFlag.NOT_FINITE) == schema.FLAGS_NOT_FINITE


def test_visits_have_the_columns_of_the_specification_beside_what_training_adds():
    columns = schema.schema_of("visits", "int").names
    assert set(columns) == {
        *("id", "id_hash", "attempt", "step", "epoch", "rank", "micro_step", "given_label"),
        *records.SIGNALS,
        *("harm_std", "worst_std"),
    }


def test_an_unknown_table_is_named_with_those_there_are():
    with pytest.raises(StoreError, match=r"visit.*visits, canaries"):
        schema.schema_of("visit", "int")
