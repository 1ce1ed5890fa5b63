"""Evidence as a page that people read."""

from canon.report.page import check_report as check_report
from canon.report.page import render as render
from canon.report.page import write_report as write_report

__all__ = ["check_report", "render", "write_report"]
