from typing import Any

import pytest

from samewise_backend.determinism import SETTINGS, numeric_environment
from samewise_backend.device import Device
from samewise_backend.launch import Launch, Options, batch_invariant, identity_arguments, plan

CPU = Device(kind="cpu", name="x", cores=4)
H100 = Device(kind="cuda", name="H100", capability=(9, 0), driver="1", cores=32)
A100 = Device(kind="cuda", name="A100", capability=(8, 0), cores=32)
T4 = Device(kind="cuda", name="T4", capability=(7, 5), cores=32)


def _plan(device: Device, *engine_args: str, environment: dict[str, str] | None = None, **options: Any) -> Launch:
    options = {"model": "/m", "model_length": 4096, **options}
    return plan(Options(engine_args=engine_args, **options), device, environment or {})


def _value(launch: Launch, flag: str) -> str | None:
    """The value that vLLM's parser would end up with: the last one."""
    found = [launch.argv[at + 1] for at, one in enumerate(launch.argv) if one == flag]
    return found[-1] if found else None


def test_a_cpu_never_gets_the_batch_invariant_mode() -> None:
    assert "VLLM_BATCH_INVARIANT" not in _plan(CPU).environment


@pytest.mark.parametrize("value", ["1", "true"])
def test_asking_for_the_batch_invariant_mode_on_a_cpu_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="VLLM_BATCH_INVARIANT"):
        _plan(CPU, environment={"VLLM_BATCH_INVARIANT": value})


@pytest.mark.parametrize(
    ("device", "version", "expected"),
    [
        (H100, (0, 11, 1), True),
        (A100, (0, 11, 1), False),
        (A100, (0, 32, 0), True),
        (T4, (0, 32, 0), False),
        (Device(kind="cuda", name="?", capability=None), (0, 32, 0), False),
        (CPU, (0, 32, 0), False),
    ],
)
def test_the_batch_invariant_mode_is_on_where_vllm_supports_the_device(
    device: Device, version: tuple[int, ...], expected: bool
) -> None:
    assert batch_invariant(device, version) is expected
    launch = _plan(device, vllm_version=version)
    assert (launch.environment.get("VLLM_BATCH_INVARIANT") == "1") is expected


def test_a_prompt_is_never_computed_in_pieces_on_a_cpu() -> None:
    launch = _plan(CPU)
    assert "--no-enable-chunked-prefill" in launch.argv
    assert int(_value(launch, "--max-num-batched-tokens") or 0) >= 4096


def test_the_largest_step_follows_the_length_that_the_operator_gives() -> None:
    assert _value(_plan(CPU, "--max-model-len", "9000"), "--max-num-batched-tokens") == "9000"
    assert _value(_plan(CPU, "--max-model-len=9001"), "--max-num-batched-tokens") == "9001"


def test_the_checkpoints_sampling_defaults_stay_out() -> None:
    for device in (CPU, H100):
        assert _value(_plan(device), "--generation-config") == "vllm"


@pytest.mark.parametrize(
    "argument",
    [
        ("--generation-config", "auto"),
        ("--generation_config=auto",),
        ("--seed", "7"),
        ("--max-num-seqs", "3"),
        ("--enable-chunked-prefill",),
        ("--dtype", "bfloat16"),
        ("--no-enforce-eager",),
    ],
)
def test_an_operators_own_argument_wins_over_ours(argument: tuple[str, ...]) -> None:
    ours, theirs = _plan(CPU).argv, _plan(CPU, *argument).argv
    stem = argument[0].split("=")[0].replace("_", "-").removeprefix("--").removeprefix("no-")
    assert [one for one in ours if one.endswith(stem)]
    kept = [one for one in theirs if one.replace("_", "-").split("=")[0].endswith(stem)]
    assert kept == [argument[0]]


def test_an_operators_own_variable_wins_over_ours() -> None:
    launch = _plan(CPU, environment={"VLLM_CPU_OMP_THREADS_BIND": "1", "OMP_NUM_THREADS": "2"})
    assert launch.environment["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert launch.settings["OMP_NUM_THREADS"] == "2"


def test_threads_leave_a_core_to_the_server_and_never_become_none() -> None:
    assert _plan(CPU).environment["OMP_NUM_THREADS"] == "3"
    assert _plan(Device(kind="cpu", name="x", cores=1)).environment["OMP_NUM_THREADS"] == "1"


def test_empty_variables_that_end_vllm_are_not_passed_on() -> None:
    launch = _plan(CPU, environment={"VLLM_LOGGING_LEVEL": "", "EMPTY": ""})
    assert "VLLM_LOGGING_LEVEL" not in launch.environment
    assert launch.environment["EMPTY"] == ""


def test_cpu_settings_stay_off_a_gpu_and_gpu_settings_off_a_cpu() -> None:
    cpu, gpu = _plan(CPU), _plan(H100)
    assert "CUBLAS_WORKSPACE_CONFIG" in gpu.environment
    assert "CUBLAS_WORKSPACE_CONFIG" not in cpu.environment
    assert "--enforce-eager" not in gpu.argv
    assert "--kernel-config" not in cpu.argv


def test_the_contract_is_given_to_vllms_server() -> None:
    assert _value(_plan(CPU), "--middleware") == "samewise_backend.middleware.EnvironmentContract"


def test_the_dtype_asked_for_is_used_on_every_device() -> None:
    assert _value(_plan(CPU), "--dtype") == "float32"
    assert _value(_plan(CPU, dtype="bfloat16"), "--dtype") == "bfloat16"
    assert _value(_plan(H100, dtype="float16"), "--dtype") == "float16"
    assert _value(_plan(H100), "--dtype") is None


def test_each_setting_says_why_and_what_it_costs() -> None:
    assert all(one.why and one.cost for one in SETTINGS)
    assert len({(one.kind, one.name) for one in SETTINGS}) == len(SETTINGS)


def test_arguments_in_the_identity_have_one_order_and_no_address_or_secret() -> None:
    one = ("/m", "--seed", "1", "--port", "1", "--api-key", "s3cret", "--host", "h", "-tp", "2", "--seed=2")
    other = ("/other", "-tp", "2", "--port", "2", "--seed", "2")
    assert identity_arguments(one) == identity_arguments(other) == ["--seed=2", "--tensor-parallel-size=2"]


def test_variables_in_the_identity_are_those_that_move_bits_and_no_secret() -> None:
    kept = numeric_environment(
        {
            "VLLM_API_KEY": "s",
            "VLLM_BATCH_INVARIANT": "1",
            "OMP_NUM_THREADS": "2",
            "HOME": "/",
            "VLLM_LOGGING_LEVEL": "x",
        }
    )
    assert kept == {"OMP_NUM_THREADS": "2", "VLLM_BATCH_INVARIANT": "1"}
