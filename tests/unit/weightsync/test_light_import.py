from __future__ import annotations

import subprocess
import sys


def test_manifests_are_read_without_torch() -> None:
    code = (
        "import sys; import argosy.weightsync as w; from argosy.weightsync.transports import load_transport\n"
        "from argosy.weightsync.manifest import make_manifest; from argosy.types.records import TensorSpec\n"
        "m = make_manifest('main', 0, [TensorSpec('a', (1,), 'float32', '00000000')])\n"
        "w.check_manifest(m, {'a': w.TensorShape((1,), 'float32')}); w.verify_agreement(m, m)\n"
        "load_transport('stream')\n"
        "assert 'torch' not in sys.modules and 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
