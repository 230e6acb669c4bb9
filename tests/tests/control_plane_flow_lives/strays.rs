//! Segments that begin no connection: they leave nothing that harms a connection from the same port to the same frontend
//! afterwards.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_common::wire::tcp;
use lb_tests::rig::unused_port;
use lb_tests::topology::{Family, Member};
use lb_tests::traffic::{Ask, Handmade};

use super::Life;

/// Flags of the segments: an answer to a SYN, both forms of FIN and RST, a bare ACK, and none.
const FLAGS: [u8; 7] = [
    tcp::SYN | tcp::ACK,
    tcp::FIN,
    tcp::FIN | tcp::ACK,
    tcp::RST,
    tcp::RST | tcp::ACK,
    tcp::ACK,
    0,
];
/// How often each segment is sent, so that a later one meets what an earlier one left.
const TIMES: u32 = 3;

/// From ports of their own, and all of them from one port.
pub(crate) fn harm_no_later_connection(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    for family in Family::ALL {
        for (service, number, backend) in life.served()? {
            let node_port = rig.node(0)?.addresses().socket(family, number);
            let asked: [(&Member, SocketAddr); 3] = [
                (rig.client(), node_port),
                (rig.client(), service.frontend(family)),
                (rig.pod(0, 0)?, service.frontend(family)),
            ];
            for (from, to) in asked {
                for flags in FLAGS.iter().map(std::slice::from_ref).chain([&FLAGS[..]]) {
                    let own = from.addresses().socket(family, unused_port());
                    stray(from, own, to, flags)?;
                    let what = || format!("{} {own} to {to} after {flags:?}", from.name());
                    connection_is_answered(from, own, to, backend).with_context(what)?;
                }
            }
        }
    }
    Ok(())
}

fn connection_is_answered(
    from: &Member,
    own: SocketAddr,
    to: SocketAddr,
    backend: &Member,
) -> Result<()> {
    let flow = from.peer().keep(Ask::tcp(to).from(own))?;
    for _ in 0..2 {
        let answer = flow.ask()?;
        ensure!(answer.server == backend.name(), "{answer:?}");
    }
    Ok(())
}

fn stray(from: &Member, own: SocketAddr, to: SocketAddr, flags: &[u8]) -> Result<()> {
    let hand = Handmade::open(from, own)?;
    for flags in flags {
        let [own, frontend] = [own, to].map(|end| at(&end.to_string()));
        let segment = Datagram::new(own, frontend, Transport::Tcp(*flags));
        for _ in 0..TIMES {
            hand.send(&segment, to)?;
        }
    }
    Ok(())
}
