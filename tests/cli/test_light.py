"""The core is light: torch alone to import it, and an answer to --help at once."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(f"{{name}} is not installed here")
sys.meta_path.insert(0, Nothing())
"""
EXTRAS = ("timm", "torchvision", "matplotlib", "cyclopts", "optuna", "rich", "sklearn",
          "safetensors", "jaxtyping", "beartype", "PIL", "numpy_not_blocked")  # fmt: skip


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_core_needs_torch_alone() -> None:
    code = (
        BLOCKED.format(names=EXTRAS)
        + "import zerotprune as z; print([getattr(z, n) and n for n in z.__all__])"
    )
    assert "schedule_for" in python(code)


def test_import_brings_in_nothing_heavy() -> None:
    code = "import sys, zerotprune; print(*sys.modules)"
    assert not {"torch", "timm", "matplotlib", "rich"} & set(python(code).split())


def test_using_the_core_imports_neither_timm_nor_matplotlib() -> None:
    code = "import sys, zerotprune as z; z.prune_, z.trace, z.methods; print(*sys.modules)"
    found = set(python(code).split())
    assert "torch" in found
    assert not {"timm", "matplotlib", "torchvision"} & found


def test_help_does_not_import_torch() -> None:
    code = "import sys\nsys.argv = ['zerotprune', '--help']\nfrom zerotprune.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\nprint(*sys.modules)"
    out = python(code)
    assert "Commands" in out
    assert not {"torch", "timm", "numpy"} & set(out.splitlines()[-1].split())


def test_the_command_line_without_its_extra_says_what_to_install() -> None:
    code = BLOCKED.format(names=("cyclopts",)) + "from zerotprune.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.strip().endswith("pip install 'zerotprune[cli]'")
