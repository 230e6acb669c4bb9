//! Annotations that the rules read.

/// Prefixes of allowed clients, separated by commas; older than `spec.loadBalancerSourceRanges`.
pub(crate) const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// The older name of [`TOPOLOGY_MODE`].
pub(crate) const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// Whether endpoints near a client are preferred.
pub(crate) const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
