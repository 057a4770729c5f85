"""Turns the records of a run, and nothing else, into numbers, pictures and pages.

`numbers` measures (a *value* is a number that was measured), `papers` sets the papers' numbers beside them, `pictures`
draws, `page` writes the HTML page and `summary.md`. `terminal` prints, `live` shows a run while it goes on, `write`
and `series` put the report of a run, of a series, beside its records.
"""
