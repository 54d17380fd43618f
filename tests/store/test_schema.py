"""The store writes what training emits, under the names that training gives it."""

import pytest

from sgoif import records
from sgoif.errors import StoreError
from sgoif.store import schema
from sgoif.training import recorder, visits


def test_the_signals_are_those_of_training_in_its_order():
    assert schema.MEAN_SIGNALS == recorder.MEAN_SIGNALS
    assert schema.STANDARDISED == visits.STANDARDISED
    assert int(visits._SKIPPED) == schema.FLAGS_NOT_USABLE
    assert int(records.VisitFlag.NOT_FINITE) == schema.FLAGS_NOT_FINITE
    columns = {"id", "id_hash", "attempt", "step", "epoch", "rank", "micro_step", "given_label"}
    assert set(schema.schema_of("visits", "int").names) == {*columns, *records.SIGNALS, "harm_std", "worst_std"}


def test_an_unknown_table_is_named_with_those_there_are():
    with pytest.raises(StoreError, match=r"no table 'visit'.*visits, holdout"):
        schema.schema_of("visit", "int")
