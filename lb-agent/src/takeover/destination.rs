//! Destinations of connections, and which of them kube-proxy serves.

use std::collections::BTreeSet;

use lb_common::addr::Ip;
use lb_common::config::ServiceRanges;
use lb_common::flow::Tuple;

/// The kind of destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DestinationKind {
    /// An address of a service range.
    ServiceRange,
    /// An address of this node, and a port between the lowest and the highest `NodePort`.
    NodePortRange,
    Elsewhere,
}

impl DestinationKind {
    /// Returns the kind of a connection's destination. `own`: the addresses of this node.
    pub(super) fn of(original: &Tuple, services: &ServiceRanges, own: &BTreeSet<Ip>) -> Self {
        let (ip, port) = (original.destination, original.destination_port);
        if services.contain(&ip) {
            Self::ServiceRange
        } else if services.may_be_node_port(port) && (own.contains(&ip) || ip.is_loopback()) {
            Self::NodePortRange
        } else {
            Self::Elsewhere
        }
    }

    /// Reports whether a connection to a destination of this kind is kube-proxy's.
    ///
    /// Other programs use ports of the range too, such as Docker for published ports and CNI plugins for a `hostPort`.
    /// So without a `NodePort` at that port the connection must be `is_known`: there are rules of kube-proxy that may
    /// have begun it, or it counted before.
    pub(super) fn counts(
        self,
        is_served: impl FnOnce() -> bool,
        is_known: impl FnOnce() -> bool,
    ) -> bool {
        match self {
            // The ClusterIP may be that of a deleted Service, whose TCP and SCTP connections go on (contract 5).
            Self::ServiceRange => true,
            Self::NodePortRange => is_served() || is_known(),
            Self::Elsewhere => is_served(),
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::addr::{Endpoint, Port};
    use lb_common::config::Prefix;

    use super::*;

    const OWN: Ip = Ip::v4([192, 168, 1, 5]);
    const CLUSTER_IP: Ip = Ip::v4([10, 96, 0, 9]);

    fn kind(to: Ip, port: u16) -> DestinationKind {
        let mut services = ServiceRanges {
            node_port_low: Port::new(30_000),
            node_port_high: Port::new(30_900),
            ..ServiceRanges::default()
        };
        services.ranges[0] = Prefix { ip: CLUSTER_IP, mask: Ip::v6([0xff; 16]) };
        let client = Endpoint::new(Ip::v4([192, 168, 1, 77]), Port::new(40_000));
        let original = Tuple::new(client, Endpoint::new(to, Port::new(port)));
        DestinationKind::of(&original, &services, &BTreeSet::from([OWN]))
    }

    #[test]
    fn destinations_are_distinguished_by_address_and_port() {
        assert_eq!(kind(CLUSTER_IP, 30_500), DestinationKind::ServiceRange);
        for ip in [OWN, Ip::v4([127, 0, 0, 1])] {
            assert_eq!(kind(ip, 30_500), DestinationKind::NodePortRange);
            assert_eq!(kind(ip, 8080), DestinationKind::Elsewhere, "outside of the range");
        }
        assert_eq!(
            kind(Ip::v4([192, 168, 1, 6]), 30_500),
            DestinationKind::Elsewhere,
            "another host"
        );
    }

    /// Docker publishes 30500, and no Service has that `NodePort`.
    #[test]
    fn published_port_in_the_range_is_no_connection_of_kube_proxy() {
        let published = kind(OWN, 30_500);
        assert!(!published.counts(|| false, || false));
        assert!(published.counts(|| true, || false), "a NodePort of a Service");
        assert!(published.counts(|| false, || true), "kube-proxy may have begun it");
        assert!(DestinationKind::ServiceRange.counts(|| false, || false), "a former ClusterIP");
        assert!(!DestinationKind::Elsewhere.counts(|| false, || true), "no frontend");
    }
}
