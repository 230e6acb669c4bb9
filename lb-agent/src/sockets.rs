//! Ends connected UDP sockets of this namespace whose backend left (ADR 0010).
//!
//! The kernel took their backend from connect(2), and no hook sees what they send after that: left
//! alone they would talk to nobody, or to a stranger. Their process is told instead (`ECONNABORTED` to who waits,
//! `EDESTADDRREQ` to who sends), connects again and gets a backend that is there. Sockets that no hook translated
//! are never touched, nor are TCP connections: those go on with a backend that leaves.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use lb_common::flow::Peer;

use crate::maps::{self, Maps};

mod diag;

use diag::{Connected, Diagnosis};

/// How long a socket may wait for an answer that its backend gave before it left.
pub const GRACE: Duration = Duration::from_secs(1);

/// Sockets whose backend left, by cookie, and when that was seen.
pub type Orphans = BTreeMap<u64, Instant>;

/// Why sockets could not be looked through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not list or end sockets.
    #[error("sock_diag: the kernel needs CONFIG_INET_UDP_DIAG and CONFIG_INET_DIAG_DESTROY")]
    Diagnosis(#[from] io::Error),
    /// A map.
    #[error(transparent)]
    Maps(#[from] maps::Error),
}

/// Ends every connected UDP socket of this namespace that a hook sent to a backend which is gone, and was known
/// as an orphan for [`GRACE`]; `known` gets the others.
///
/// Says how many. One that could not be ended does not keep the others; its error is told at the end.
pub fn end_orphans(maps: &Maps, known: &mut Orphans) -> Result<usize, Error> {
    let mut diagnosis = Diagnosis::new()?;
    let (mut ended, mut failure) = (0, None);
    let (now, before) = (Instant::now(), std::mem::take(known));
    for socket in diagnosis.connected()? {
        let Some(peer) = maps.socket(socket.cookie)? else { continue };
        if !is_orphan(&socket, &peer, maps.backend(peer.id)?.epoch) {
            continue;
        }
        let since = before.get(&socket.cookie).copied().unwrap_or(now);
        if now.duration_since(since) < GRACE {
            let _new: Option<Instant> = known.insert(socket.cookie, since);
            continue;
        }
        match diagnosis.end(&socket) {
            Ok(true) => ended += 1,
            Ok(false) => {}
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(ended), |error| Err(error.into()))
}

/// Whether a socket still goes where a hook sent it, and its backend's row has moved on to another epoch.
fn is_orphan(socket: &Connected, peer: &Peer, epoch: u32) -> bool {
    socket.to == peer.backend && peer.epoch != epoch
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::addr::{Endpoint, Ip, Port};

    fn at(host: u8) -> Endpoint {
        Endpoint::new(Ip::v4([10, 0, 0, host]), Port::new(53))
    }

    #[test]
    fn only_a_socket_that_still_goes_to_a_backend_that_left_is_an_orphan() {
        let peer = Peer { frontend: at(1), backend: at(2), id: 7, epoch: 3 };
        let socket = |to| Connected { to, ..Connected::default() };
        assert!(is_orphan(&socket(at(2)), &peer, 4), "its endpoint left");
        assert!(!is_orphan(&socket(at(2)), &peer, 3), "its endpoint is there");
        assert!(!is_orphan(&socket(at(3)), &peer, 4), "connected elsewhere since");
    }
}
