"""`vllm-grammar doctor`: is everything in place here, and what is in force."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from vllm_grammar_backend import __version__, engines, pin, settings
from vllm_grammar_backend.errors import StartupError

EXAMPLES = """\b
Examples:
  vllm-grammar doctor
  vllm-grammar doctor --backend xgrammar --grammar-config configs/reproducible.yaml
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `ok` is None for plain information."""

    what: str
    state: str
    ok: bool | None = None


@click.command(epilog=EXAMPLES)
@click.option("--backend", type=click.Choice(engines.NAMES), help="Also require this backend's library.")
@click.option("--grammar-config", metavar="FILE", help="The server's settings file.")
def doctor(backend: str | None, grammar_config: str | None) -> None:
    """Print versions, each seam's state, settings in force and what VLLM_PLUGINS should be; exit 1 on a fault."""
    findings = [Finding("vllm-grammar-backend", __version__)]
    for section in (_libraries(backend), _host(), _settings(grammar_config, backend)):
        findings += section
    marks = {True: "ok   ", False: "FAULT", None: "     "}
    for finding in findings:
        click.echo(f"{marks[finding.ok]} {finding.what}: {finding.state}")
    sys.exit(1 if any(finding.ok is False for finding in findings) else 0)


def _libraries(backend: str | None) -> list[Finding]:
    found = []
    for name in engines.NAMES:
        try:
            found.append(Finding(f"backend {name}", f"{engines.distribution(name)} {engines.require(name)}", ok=True))
        except StartupError as error:
            found.append(Finding(f"backend {name}", str(error), ok=False if name == backend else None))
    if not any(finding.ok for finding in found):
        found.append(Finding("backends", "none of the libraries is installed", ok=False))
    return found


def _host() -> list[Finding]:
    version = pin.vllm_version()
    try:
        pin.check_vllm()
    except StartupError as error:
        return [Finding("vLLM", str(error), ok=False)]
    from vllm_grammar_backend.host import all_seams, capabilities, seams

    found = [Finding("vLLM", str(version), ok=True)]
    for seam in all_seams():
        problem = seams.probe(seam)
        found.append(Finding(f"seam {seam.target}", problem or "fits", problem is None))
    if capabilities.rust_frontend():
        found.append(Finding("front end", "VLLM_USE_RUST_FRONTEND is set, and it loads no plugin: unset it", ok=False))
    if not capabilities.plugin_allowed():
        state = f"VLLM_PLUGINS leaves this plugin out; set it to {capabilities.plugins_value()}"
        found.append(Finding("plugin", state, ok=False))
    elif capabilities.routes_on():
        found.append(Finding("HTTP routes", "on", ok=True))
    else:
        found.append(Finding("HTTP routes", f"off; to switch them on set VLLM_PLUGINS={capabilities.plugins_value()}"))
    return found


def _settings(file: str | None, backend: str | None) -> list[Finding]:
    try:
        found, origins = settings.load_with_origins(file)
    except StartupError as error:
        return [Finding("settings", str(error), ok=False)]
    lines = [Finding(f"setting {origin.key}", f"{origin.value!r} ({origin.source})") for origin in origins]
    if backend is not None and found.backend_version:
        lines.append(_version_finding(backend, found.backend_version))
    return lines


def _version_finding(backend: str, specifier: str) -> Finding:
    try:
        engines.check_version(backend, specifier)
    except StartupError as error:
        return Finding("backend_version", str(error), ok=False)
    return Finding("backend_version", f"{backend} matches {specifier}", ok=True)
