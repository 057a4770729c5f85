"""Playing experiments: `launch` chooses and reports, `session` plays one run, `sweep` a series of them."""
