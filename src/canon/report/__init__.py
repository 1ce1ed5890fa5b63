"""Evidence as a page that people read."""

from canon.report.page import check_report, render, write_report

__all__ = ["check_report", "render", "write_report"]
