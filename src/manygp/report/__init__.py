"""One page about a fitted model: what came in, what was chosen, how training went, how far to trust it.

`write_report` writes a single HTML file that needs no network and no server, or Markdown. Needs the extra `report`.
"""

from manygp.report.page import write_report

__all__ = ["write_report"]
