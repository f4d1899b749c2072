"""The Python code of the documentation."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def run_block(page, title, scope):
    """Run the block that begins with this docstring as the code of a module; tracebacks show the lines of the page."""
    before, code = (DOCS / page).read_text().split(f'```python\n"""{title}')
    code = f'"""{title}{code.partition("```")[0]}'
    exec(compile("\n" * (before.count("\n") + 1) + code, DOCS / page, "exec"), scope)
