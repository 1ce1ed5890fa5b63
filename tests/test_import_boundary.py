"""`import canon` needs the core dependencies and loads none of the extras.

The proof runs in a process of its own, since this one has long imported everything. The last test shows that the proof
fails when an extra is loaded.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

EXTRAS = (
    "OpenSSL",
    "asn1crypto",
    "cryptography",
    "diffusers",
    "jinja2",
    "material",
    "matplotlib",
    "mkdocs",
    "mkdocstrings",
    "mlflow",
    "model_signing",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "psutil",
    "pyarrow",
    "ray",
    "rfc3161_client",
    "rich",
    "safetensors",
    "securesystemslib",
    "sklearn",
    "timm",
    "torch_pruning",
    "torchvision",
    "transformers",
    "typer",
)


def extras_loaded_by(statement: str) -> set[str]:
    """The extras that a fresh interpreter has loaded after `statement`."""
    script = f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split()) & set(EXTRAS)


def test_import_canon_loads_no_extra() -> None:
    assert extras_loaded_by("import canon, canon.watermarks, canon.zoo") == set()


def test_the_proof_can_fail() -> None:
    assert extras_loaded_by("import canon, safetensors") == {"safetensors"}


def test_help_does_not_wait_for_torch() -> None:
    code = "import canon.cli.main, sys; print('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_core_dependencies_are_three() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [requirement.split(">=")[0] for requirement in project["dependencies"]] == ["torch", "numpy", "scipy"]


def test_every_extra_is_looked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imported_as = {
        "scikit-learn": "sklearn",
        "pyOpenSSL": "OpenSSL",
        "mkdocs-material": "material",
        "mkdocstrings-python": "mkdocstrings",
    }
    names = (
        requirement.split(">=")[0]
        for extra, requirements in project["optional-dependencies"].items()
        for requirement in requirements
        if extra != "dev" and not requirement.startswith("canon-nso")
    )
    assert {imported_as.get(name, name.replace("-", "_")) for name in names} == set(EXTRAS)
