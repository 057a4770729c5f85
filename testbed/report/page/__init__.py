"""The report of a run to read: one HTML page with everything in it, and `summary.md`."""

from testbed.report.page.html import write_page

__all__ = ["write_page"]
