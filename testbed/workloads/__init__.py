"""What one worker needs to train: models, data, batches, augmentation, schedules, optimizers, its gradient.

Nothing here draws from a stateful random generator: every random choice is keyed (`keyed.generator`), so a
resumed run repeats an uninterrupted one and every fabric sees the same batches.
"""
