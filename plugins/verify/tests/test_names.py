"""The package has its names, also once its modules are imported."""

import stratagem_verify
import stratagem_verify.command
import stratagem_verify.verification


def test_its_names_are_the_function_and_its_result():
    assert dir(stratagem_verify) == ["Verification", "verify"]
    assert stratagem_verify.verify is stratagem_verify.verification.verify
