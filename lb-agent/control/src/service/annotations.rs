//! Annotations that mean something to the rules.

/// Prefixes that may ask, as a list with commas; older than `spec.loadBalancerSourceRanges`.
pub(crate) const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// Older name of [`TOPOLOGY_MODE`].
pub(crate) const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// Whether backends near a client are preferred.
pub(crate) const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
