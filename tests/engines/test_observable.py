"""The certificate of who looks at a run: in its folder as long as it goes on."""

from pathlib import Path

from pslab.launch.security import Protection, RunSecurity, observable, options_for
from pslab.runs.making import make_folder
from pswire.security.settings import SecurityOptions


def test_a_certificate_is_there_while_a_run_goes_on(tmp_path: Path) -> None:
    run = make_folder(tmp_path / "run")
    with observable(run, RunSecurity("run")):
        found = options_for(run)
        assert Path(found.tls_key).stat().st_mode & 0o777 == 0o600
        assert Path(found.tls_key).parent == run / "observer"
    assert options_for(run) == SecurityOptions() and not (run / "observer").exists()
    with observable(run, Protection()):
        assert options_for(run) == SecurityOptions()


def test_the_next_run_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    run = make_folder(tmp_path / "run")
    (run / "experiment.toml").touch()
    (run / "observer").mkdir()
    (run / "observer" / "observer-0-key.pem").touch()
    make_folder(run, force=True)
    assert not (run / "observer").exists()
