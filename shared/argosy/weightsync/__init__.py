"""Moving one policy version's weights from a holder to a receiver, all or nothing.

A version is a `WeightsManifest`: name, shape, dtype and checksum of every tensor. The way of one sync:

    sender    Snapshot.freeze(model state)          → manifest, bytes that no longer change
    receiver  check_manifest(manifest, my model)    → refused before the first byte, or
              Staging(manifest)                     → a transport fills it chunk by chunk
              staging.finish()                      → every checksum right, then the caller swaps the tensors in
    both      verify_agreement                      → both sides' digests are equal

Nothing here imports torch before a tensor is really touched, so that the controller can read manifests.
"""

from argosy.weightsync.agreement import verify_agreement, verify_canary
from argosy.weightsync.manifest import TensorShape, build_manifest, check_manifest, manifest_digest
from argosy.weightsync.snapshot import Snapshot
from argosy.weightsync.staging import Staging
from argosy.weightsync.tensors import find_tied, shapes_of

__all__ = [
    "Snapshot",
    "Staging",
    "TensorShape",
    "build_manifest",
    "check_manifest",
    "find_tied",
    "manifest_digest",
    "shapes_of",
    "verify_agreement",
    "verify_canary",
]
