"""Does a server of rewards keep the contract, in whatever language it is written? `argosy reward check` runs this.

From pytest:

    findings = await check_server("127.0.0.1:4711", timeout_s=5)
    assert not failures(findings), describe(findings)
"""

from argosy.reward.conformance.findings import Finding, Result, describe, failures
from argosy.reward.conformance.run import check_server
from argosy.reward.conformance.samples import Sample, read_samples

__all__ = ["Finding", "Result", "Sample", "check_server", "describe", "failures", "read_samples"]
