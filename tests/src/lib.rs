//! The test harness: namespaces as hosts, a real control plane, waiting with a deadline.
