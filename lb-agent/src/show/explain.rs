//! `explain`: shows the fate of a client's first packet, by running the data path's own code on the pinned maps.
//!
//! The maps do not change, and no agent is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use lb_common::addr::{Ip, Port, Protocol};
use lb_common::bytes::{Bytes, Home, KnownRoute};
use lb_common::config::Settings;
use lb_common::event::{DropReason, Verdict};
use lb_common::flow::Tuple;
use lb_common::forward::{Next, Scratch, whole};
use lb_common::service::{Frontend, Service};

use super::Error;
use crate::datapath::{self, LAYOUT, is_hook_attached};
use crate::maps::Maps;
use crate::node::open;
use crate::state_file::StateFile;

mod explanation;
mod live;
mod origin;
mod packet;
mod remedy;
mod route;

pub use explanation::Explanation;
use live::Live;
use origin::PacketOrigin;

/// The maximum IP packet size assumed where the route's MTU is not queried: a first packet is short.
const MTU: u16 = u16::MAX;

/// The packet of a client, to be explained.
#[derive(Clone, Debug)]
pub struct ClientPacket {
    /// Address and port of the client.
    pub from: SocketAddr,
    /// The destination of the client, usually a frontend.
    pub to: SocketAddr,
    pub protocol: Protocol,
    /// The interface on which the packet arrives. If not given, that of the route to the client.
    pub device: Option<String>,
}

/// Runs the packet through the data path.
pub fn explain(bpf_dir: &Path, asked: &ClientPacket) -> Result<Explanation, Error> {
    let (from, to) = (asked.from.ip(), asked.to.ip());
    if from.is_ipv4() != to.is_ipv4() {
        return Err(Error::Families(from, to));
    }
    let maps = datapath::open_here(bpf_dir)?;
    let links = bpf_dir.join(LAYOUT).join("links");
    let settings = in_effect(maps.settings()?, to, |hook| is_hook_attached(&links, hook));
    let origin = PacketOrigin::find(&maps, &settings, asked)?;
    let sockets = replies_to_sockets(asked)?;
    let mut passed = pass(&maps, &origin, asked, BTreeMap::new(), &sockets)?;
    if passed.verdict == Verdict::Drop(DropReason::NoRoute) {
        // The route of a packet of this node is queried only when its backend is known.
        let Scratch { next, pair, found, .. } = &*passed.scratch;
        let flow = if *next == Next::First { &pair.forward } else { &found.flow };
        let backend = flow.to.destination;
        if let Ok(found) = route::to(IpAddr::from(backend)) {
            let source = found.source.map(Ip::from).unwrap_or_default();
            let known = KnownRoute { mtu: MTU, route: None, device: found.device, source };
            passed = pass(&maps, &origin, asked, [(backend, known)].into(), &sockets)?;
        }
    }
    let frontend = frontend(&maps, asked, &passed)?;
    let state_file = StateFile::read(bpf_dir);
    Ok(explanation::explain(&settings, &state_file, &origin, asked, frontend, &passed))
}

/// Returns the settings with sockets switched off if the hook that handles connect(2) to this address is not attached.
fn in_effect(mut settings: Settings, to: IpAddr, is_attached: impl Fn(&str) -> bool) -> Settings {
    if !is_attached(if to.is_ipv4() { "connect4" } else { "connect6" }) {
        settings.node.socket_mode = Settings::SOCKETS_OFF;
    }
    settings
}

/// Returns the packets that sockets of this node receive as replies, with the packet's destination. A TCP packet to be
/// explained is a SYN, which is never a reply.
fn replies_to_sockets(asked: &ClientPacket) -> Result<BTreeSet<(Protocol, Tuple)>, Error> {
    if asked.protocol == Protocol::TCP {
        return Ok(BTreeSet::new());
    }
    let to = Frontend::new(asked.to.ip().into(), Port::new(asked.to.port()), asked.protocol);
    let open = open::sockets(|own| *own == to).map_err(Error::Sockets)?;
    Ok(open.into_iter().collect())
}

/// The verdict of a packet, and the working memory after it.
struct Passed {
    verdict: Verdict,
    scratch: Box<Scratch>,
}

fn pass(
    maps: &Maps,
    origin: &PacketOrigin,
    asked: &ClientPacket,
    routes: BTreeMap<Ip, KnownRoute>,
    sockets: &BTreeSet<(Protocol, Tuple)>,
) -> Result<Passed, Error> {
    let live = Live::new(maps)?;
    let bytes = packet::first(asked.protocol, asked.from, asked.to);
    let mut packet = Bytes::new(bytes, Home::Skb);
    (packet.device, packet.from_host, packet.routes) = (origin.device, origin.is_node, routes);
    packet.sockets.clone_from(sockets);
    let mut scratch: Box<Scratch> = Box::default();
    // These are the functions of the kernel's programs, applied to the maps as they are now.
    let handle = if origin.is_node { whole::egress } else { whole::ingress };
    let verdict = handle(&mut packet, &live, &mut scratch, origin.role);
    live.finish()?;
    Ok(Passed { verdict, scratch })
}

/// Returns the frontend that was found, if any.
fn frontend(
    maps: &Maps,
    asked: &ClientPacket,
    passed: &Passed,
) -> Result<Option<(Frontend, Service)>, Error> {
    let (ip, port) = (Ip::from(asked.to.ip()), passed.scratch.headers.key.tuple.destination_port);
    let of = [
        Frontend::new(ip, port, asked.protocol),
        // The data path looks up the address first and the NodePort second.
        Frontend::node_port(ip, port, asked.protocol),
    ];
    for frontend in of {
        let service = maps.service(&frontend)?;
        if let Some(service) = service.filter(|it| it.id == passed.scratch.choice.service.id) {
            return Ok(Some((frontend, service)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use lb_common::forward::Role;

    use super::*;

    #[test]
    fn connect_chooses_no_backend_without_the_hook_of_the_family() {
        let mut settings = Settings::default();
        settings.node.socket_mode = Settings::SOCKETS_HOST;
        let origin = PacketOrigin { device: 2, role: Role::External, is_node: true, bridge: None };
        for (to, expected) in [([10, 96, 0, 1].into(), true), ([0xfd; 16].into(), false)] {
            let settings = in_effect(settings, to, |hook| hook == "connect4");
            assert_eq!(origin.has_hooks(&settings, None), expected, "{to}");
        }
    }
}
