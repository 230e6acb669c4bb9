//! A VIP that is an address of the node, as `ServiceLB` of k3s gives it.

use super::step;
use crate::addr::Protocol;
use crate::event::{Hook, PassReason, Verdict};
use crate::fake::{Datagram, Fake, Transport, at, is_fast, run, world};

/// Most packets to such an address, of tunnels for example, are for no Service.
#[test]
fn packet_to_another_port_of_a_vip_stays_on_the_fast_path() {
    for (client, vip, tunnel, own) in [
        (world::CLIENT4, "192.168.0.10:443", "192.168.0.10:4789", world::LOCAL4),
        (world::CLIENT6, "[fd00:c0::10]:443", "[fd00:c0::10]:4789", world::LOCAL6),
    ] {
        let mut tables = Fake::node();
        let service = tables.add_service(1, &[(own, true)]);
        tables.external(vip, Protocol::UDP, service);
        let comes = |to: &str| {
            let packet = Datagram::new(at(client), at(to), Transport::Udp(true));
            step(Hook::ExternalIngress, packet.build())
        };
        assert!(is_fast(&comes(tunnel), &tables), "{tunnel}");
        assert_eq!(run(&comes(tunnel), &tables).0, Verdict::Pass(PassReason::NotOurs), "{tunnel}");
        assert!(!is_fast(&comes(vip), &tables), "the first packet of a flow to {vip}");
    }
}
