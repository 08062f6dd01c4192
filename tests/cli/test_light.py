"""The core is light: torch alone to import it, and an answer to --help at once."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

BLOCKED = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def distributions_of(name: str) -> set[str]:
    """Return a distribution and everything it requires that is installed."""
    wanted, needed = [name], set[str]()
    while wanted:
        try:
            installed = distribution(wanted.pop())
        except PackageNotFoundError:  # for another platform
            continue
        if installed.name not in needed:
            needed.add(installed.name)
            for requirement in installed.requires or ():
                project = re.match(r"[\w.-]+", requirement)
                if project is not None and "extra ==" not in requirement:
                    wanted.append(project[0])
    return needed


def not_of_torch() -> set[str]:
    """Return the modules of every installed package except ours, torch and torch's requirements."""
    needed = {"zerotprune", *distributions_of("torch")}
    return {
        module for module, owners in packages_distributions().items() if needed.isdisjoint(owners)
    }


def test_the_core_needs_torch_alone() -> None:
    """It does not even need NumPy, which torch uses only if it is installed."""
    extras = not_of_torch()
    assert {"numpy", "timm", "torchvision", "PIL", "rich", "safetensors"} <= extras
    code = BLOCKED.format(names=extras) + (
        "import torch, zerotprune as z\n"
        "print(*(getattr(z, name) and name for name in z.__all__))\n"
        "try:\n    z.prune_(torch.nn.Linear(2, 2), cost=0.5)\n"
        "except TypeError as refused:\n    print(refused)\n"
        "print(*sys.modules)"
    )
    names, refused, modules = python(code).splitlines()
    assert "schedule_for" in names.split()
    assert refused.startswith("cannot prune Linear")
    assert not extras & {name.partition(".")[0] for name in modules.split()}


def test_import_brings_in_nothing_heavy() -> None:
    code = "import sys, zerotprune; print(*sys.modules)"
    assert not {"torch", "timm", "matplotlib", "rich"} & set(python(code).split())


def test_using_the_core_imports_neither_timm_nor_matplotlib() -> None:
    code = (
        "import sys, zerotprune as z; print(z.Schedule((z.Stage(2, 0.5),)).method.name)\n"
        "z.prune_, z.trace, z.methods; print(*sys.modules)"
    )
    method, modules = python(code).splitlines()
    assert method == "zero-tprune", "a schedule is the first thing that is asked for"
    imported = set(modules.split())
    assert "torch" in imported
    assert not {"timm", "matplotlib", "torchvision"} & imported


def test_help_is_what_cyclopts_prints_but_imports_neither_it_nor_torch() -> None:
    code = "import sys\nsys.argv = ['zerotprune', *{0!r}]\nfrom zerotprune.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\nprint(*sys.modules)"
    (help_page, modules), (cyclopts_page, _) = (
        python(code.format(arguments)).rsplit("\n", 1) for arguments in (["--help"], [])
    )
    assert "Commands" in help_page
    assert help_page == cyclopts_page
    assert not {"cyclopts", "torch", "timm", "numpy"} & set(modules.split())


def test_the_command_line_without_its_extra_says_what_to_install() -> None:
    code = BLOCKED.format(names=("cyclopts",)) + "from zerotprune.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("pip install 'zerotprune[cli]'")
