"""What holds the parts of an experiment together lets go of them."""

from __future__ import annotations

import gc
import weakref

from small_runs import experiment

from testbed.experiment.assembly import Assembly


def test_an_experiment_that_is_done_with_leaves_no_data_behind(small_data: None) -> None:
    """A search plays one after the other in one process; each held a data set would fill the machine."""
    assembly = Assembly(experiment(systems={"baseline": {}}))
    task = assembly.task(0)
    task.learner(0).gradient(task.initial, 0)
    images = weakref.ref(assembly.workload.dataset)
    del assembly, task
    gc.collect()
    assert images() is None
