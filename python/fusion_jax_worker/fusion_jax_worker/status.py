"""Errors with the status codes that the wire carries: those of gRPC and absl."""

from enum import IntEnum


class Code(IntEnum):
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


class StatusError(Exception):
    """What went wrong, as it is told to the broker and to peers."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = Code(code) if code in Code._value2member_map_ else Code.UNKNOWN
        self.message = message

    def __str__(self):
        return f"{self.code.name}: {self.message}"


def invalid(message):
    return StatusError(Code.INVALID_ARGUMENT, message)


def data_loss(message):
    return StatusError(Code.DATA_LOSS, message)


def precondition(message):
    return StatusError(Code.FAILED_PRECONDITION, message)


def not_found(message):
    return StatusError(Code.NOT_FOUND, message)


def of_os_error(error, doing):
    """The status of a system call that failed."""
    import errno

    codes = {errno.ENOENT: Code.NOT_FOUND, errno.EACCES: Code.PERMISSION_DENIED, errno.EPERM: Code.PERMISSION_DENIED,
             errno.ENOSPC: Code.RESOURCE_EXHAUSTED, errno.EROFS: Code.FAILED_PRECONDITION}
    return StatusError(codes.get(error.errno, Code.UNKNOWN), f"{doing}: {error.strerror}")
