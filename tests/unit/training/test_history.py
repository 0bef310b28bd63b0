"""The record of a run."""

from dataclasses import asdict

import pandas as pd

from manygp.training import Correction, EpochRecord, History, Recorder


def test_columns_time_and_frame():
    records = [EpochRecord(i, -10.0 / i, -8.0, 1.0, 1.0, 0.1, 0.5, 0.25) for i in (1, 2)]
    history = History(records, "epochs")
    assert len(history) == 2
    assert history["bound"] == [-10.0, -5.0]
    assert history.seconds == 0.5
    frame = history.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["epoch"].tolist() == [1, 2]
    assert set(frame) == set(EpochRecord.__dataclass_fields__)


def test_nothing_has_happened_yet():
    assert len(History()) == 0
    assert History().seconds == 0
    assert History().to_frame().empty


def test_a_history_says_how_it_went():
    records = [EpochRecord(i, -1000.0 * i, -8.0, 1.0, 1.0, 0.1, 0.5, 0.25) for i in range(1, 61)]
    assert repr(History(records, "converged")) == "<History of 60 epochs in 15.0 s, converged: bound -60,000.0 nats>"
    assert repr(History()) == "<History of no epoch>"


def test_a_recorder_numbers_and_times_what_it_is_told():
    recorder = Recorder()
    recorder.add(-3.0, -1.0, 1.0, 1.0, natural_rate=1.0)
    recorder.add(-2.0, -2.0, learning_rate=0.1)
    history = recorder.end("converged")
    assert history["epoch"] == [1, 2]
    assert history["kl_u"] == [1.0, 0.0]
    assert history["natural_rate"] == [1.0, 0.0]
    assert min(history["seconds"]) >= 0.0
    assert history.stop_reason == "converged"


def test_a_history_comes_back_from_plain_values():
    records = [EpochRecord(1, -10.0, -8.0, 1.0, 1.0, 0.1, 0.5, 0.25)]
    corrections = [Correction("noise", "cells left out tell", "noise variance times 1.21", 0.5)]
    history = History(records, "epochs", {"training": 0.25}, {"rank": "3"}, corrections)
    assert History.from_plain(asdict(history)) == history
