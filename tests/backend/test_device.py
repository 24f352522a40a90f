import pytest

from samewise_backend.device import Device, parse_nvidia_smi, probe

TWO = (
    "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 9.0, 550.54.15, 700.00 W, 1980 MHz, [N/A], Default, Enabled\n"
    "1, GPU-bbbb, NVIDIA A100-SXM4-40GB, 8.0, 550.54.15, 400.00 W, 1410 MHz, [N/A], Default, Enabled\n"
)


def test_devices_are_read_as_the_driver_reports_them() -> None:
    found = parse_nvidia_smi(TWO)
    assert found is not None
    assert (found.kind, found.count, found.driver) == ("cuda", 2, "550.54.15")
    assert found.name == "NVIDIA A100-SXM4-40GB, NVIDIA H100 80GB HBM3"


def test_the_weakest_device_says_what_all_can_do() -> None:
    found = parse_nvidia_smi(TWO)
    assert found is not None
    assert found.capability == (8, 0)


@pytest.mark.parametrize(("visible", "name"), [("0", "H100"), ("1", "A100"), ("GPU-bbbb", "A100")])
def test_only_visible_devices_count(visible: str, name: str) -> None:
    found = parse_nvidia_smi(TWO, visible)
    assert found is not None
    assert found.count == 1
    assert name in found.name


@pytest.mark.parametrize(("text", "visible"), [("", None), (TWO, ""), (TWO, "7"), ("garbage\n", None)])
def test_no_device_is_none(text: str, visible: str | None) -> None:
    assert parse_nvidia_smi(text, visible) is None


def test_an_unreadable_capability_is_unknown() -> None:
    found = parse_nvidia_smi(TWO.replace("8.0", "[N/A]"))
    assert found is not None
    assert found.capability is None


def test_settings_that_cannot_be_read_are_left_out() -> None:
    found = parse_nvidia_smi(TWO)
    assert found is not None
    settings = found.manifest()["settings"]
    assert settings["power.limit"] == "400.00 W, 700.00 W"
    assert "clocks.applications.graphics" not in settings


def test_this_machines_cpu_is_described_by_its_vector_units() -> None:
    found = probe("cpu")
    assert found.kind == "cpu"
    assert found.cores >= 1
    assert found.manifest()["model"]


def test_asking_for_a_device_that_is_not_there_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LookupError):
        probe("cuda")
    assert isinstance(probe("auto"), Device)
