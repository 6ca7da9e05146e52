"""The exceptions of Argosy, each with the data that a caller needs to decide.

    ArgosyError
    ├── InvalidInputError       the request or the file is wrong; repeating it will not help        INVALID_ARGUMENT
    │   └── ConfigError         a configuration key or value is wrong (exit code 2)
    ├── NotFoundError           a named thing does not exist                                        NOT_FOUND
    ├── FencedError             the sender's term is lower than the run's: it is no longer leader   FAILED_PRECONDITION
    ├── StepMismatchError       the trainer is not at the step that the request expects             FAILED_PRECONDITION
    ├── WeightsRefusedError     a weight update does not fit the model; the old version goes on     FAILED_PRECONDITION
    ├── StateError              the service is not in a state that allows the call                  FAILED_PRECONDITION
    ├── CorruptDataError        a checksum or a size does not match                                 DATA_LOSS
    ├── StorageError            a file can't be written: disk full, or not allowed                  FAILED_PRECONDITION
    ├── OverloadedError         a bounded queue is full; try again after `retry_after_s`            RESOURCE_EXHAUSTED
    ├── MessageTooLargeError    over the message limit; not retried                                 RESOURCE_EXHAUSTED
    ├── DeadlineError           the total deadline has passed                                       DEADLINE_EXCEEDED
    ├── AbortedError            the work was ended on purpose                                       ABORTED
    ├── UnavailableError        the peer can't be reached or is going away                          UNAVAILABLE
    └── InternalError           a defect on the other side                                          INTERNAL

`argosy.rpc.errors` is the one place that maps them to gRPC status + ErrorInfo and back.
"""

from __future__ import annotations


class ArgosyError(Exception):
    """Base of everything that Argosy raises on purpose.

    `metadata` travels in ErrorInfo.metadata, so that the other side gets the data and not only a sentence.
    """

    def __init__(self, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = metadata


class InvalidInputError(ArgosyError):
    """The request or the file is wrong; repeating it will not help."""


class ConfigError(InvalidInputError):
    """A configuration key or value is wrong: refused before any process starts, exit code 2."""


class NotFoundError(ArgosyError):
    """A named thing (a sync, a checkpoint, a sample) does not exist."""


class FencedError(ArgosyError):
    """The sender's term is lower than the one this server has seen: the sender is no longer the run's leader."""


class StepMismatchError(ArgosyError):
    """The trainer is not at the `expected_step` of the request; `metadata["actual_step"]` says where it is."""


class WeightsRefusedError(ArgosyError):
    """A weight update does not fit the model (unknown, missing or misshapen tensors); the old version goes on."""


class StateError(ArgosyError):
    """The service is not in a state that allows the call (paused, draining, weights stale …)."""


class CorruptDataError(ArgosyError):
    """A checksum or a size does not match what was announced."""


class StorageError(ArgosyError):
    """A file can't be written: no space is left, or it is not allowed. What was written before is intact."""


def storage_error(error: Exception, path: object) -> StorageError:
    """What to tell about a failed write (OSError, or a library's own error for one)."""
    text = str(error)
    if any(words in text.lower() for words in ("no space", "disk is full", "quota", "file too large")):
        return StorageError(
            f"no space left while writing {path} ({text}): free some, or put the run elsewhere with "
            "trainer.default_local_dir=…; resume continues from the last complete checkpoint"
        )
    if any(words in text.lower() for words in ("permission", "read-only", "readonly", "not permitted")):
        return StorageError(f"not allowed to write {path} ({text}): choose another trainer.default_local_dir")
    return StorageError(f"could not write {path}: {text}")


class OverloadedError(ArgosyError):
    """A bounded queue is full. `retry_after_s` is the server's advice."""

    def __init__(self, message: str, *, retry_after_s: float = 0.5, **metadata: str) -> None:
        super().__init__(message, **metadata)
        self.retry_after_s = retry_after_s


class MessageTooLargeError(ArgosyError):
    """One message is over the limit, which `metadata["limit_bytes"]` names. Never retried."""


class DeadlineError(ArgosyError):
    """The total deadline has passed, all tries included."""


class AbortedError(ArgosyError):
    """The work was ended on purpose, by an abort or by a cancelled caller."""


class UnavailableError(ArgosyError):
    """The peer can't be reached, or is going away. Worth a retry elsewhere."""


class InternalError(ArgosyError):
    """A defect on the other side; its text is in the message."""
