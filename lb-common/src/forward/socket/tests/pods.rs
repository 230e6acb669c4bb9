//! Calls of pods' sockets: `socketLB: all`.

use super::super::{Call, Outcome, is_served};
use super::{SOCKET, V4, call, connects, node, plain, used};
use crate::addr::Protocol;
use crate::config::Settings;
use crate::fake::world;
use crate::service::{Flags, Service};

const POD: u64 = 8;

#[test]
fn sockets_of_other_namespaces_are_served_if_set() {
    let mut tables = plain(&V4);
    let own = call(world::CLUSTER4, Protocol::TCP, SOCKET);
    let pods = Call { netns: POD, ..own };
    for (mode, served) in [
        (Settings::SOCKETS_HOST, [true, false]),
        (Settings::SOCKETS_ALL, [true, true]),
        (Settings::SOCKETS_OFF, [false, false]),
    ] {
        tables.settings.node.socket_mode = mode;
        assert_eq!([own, pods].map(|call| is_served(&tables, &call)), served);
    }
}

/// `socketLB: all`: a pod's socket may have no address yet, and what depends on it is left to its packets.
#[test]
fn decisions_by_address_are_left_to_the_packets_of_a_pod() {
    let with = |flags| move |service: Service| Service { flags, ..service };
    let sources = node(&V4, &V4.backends, with(Flags::SOURCE_RANGES.with(Flags::ANYWHERE)));
    let sticky = node(&V4, &V4.backends, |service| Service { affinity: 60, ..service });
    let local = node(&V4, &V4.backends, with(Flags::LOCAL_POLICY.with(Flags::ANYWHERE)));
    let mut hidden = plain(&V4);
    hidden.settings.node.flags |= Settings::MASQUERADE_KUBE_PROXY;
    for (tables, frontend) in [
        (&sources, world::CLUSTER4),
        (&sticky, world::CLUSTER4),
        (&local, world::NODE4),
        (&hidden, world::CLUSTER4),
        (&plain(&V4), V4.loopback),
    ] {
        let asked = Call { netns: POD, ..call(frontend, Protocol::TCP, SOCKET) };
        assert_eq!(connects(tables, &asked), Outcome::Leave, "{frontend}");
        assert!(tables.affinity.borrow().is_empty());
    }
    for frontend in [world::CLUSTER4, world::NODE4] {
        let asked = Call { netns: POD, ..call(frontend, Protocol::TCP, SOCKET) };
        let _backend = used(connects(&plain(&V4), &asked));
    }
}
