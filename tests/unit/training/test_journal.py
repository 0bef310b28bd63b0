import torch

from manygp.training import History, Journal
from manygp.training.journal import copied, recalled_history, told_history


def test_a_plain_journal_forgets():
    journal = Journal()
    journal.note({"step": 1})
    journal.flush()
    assert journal.begin() is None
    assert journal.seed(3) == 3
    assert not journal.is_active


def test_copies_do_not_change_with_what_they_were_made_of():
    state = {"a": [torch.zeros(2), 1], "b": (torch.ones(1),)}
    copy = copied(state)
    state["a"][0].add_(1.0)
    assert copy["a"][0].eq(0.0).all()
    assert isinstance(copy["b"], tuple)


def test_histories_come_back():
    history = History()
    history.stop_reason = "epochs"
    assert recalled_history(told_history(history)) == history
