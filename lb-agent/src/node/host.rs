//! Prepares the network stack for packets of host processes (ADR 0027).
//!
//! They need a route to every frontend, a link-layer address for each one in a network of this node, and a loopback
//! interface that accepts packets with a source address of this node. Netfilter must not forget connections too early.
//! All of that belongs to the network namespace. The earlier settings are saved, and `lb-agent cleanup` restores them.

pub mod conntrack;
mod earlier;
mod error;
pub mod forwarding;
mod loopback;
mod neighbours;
mod record;
mod routes;

use std::path::Path;
use std::time::Duration;

use futures::future::OptionFuture;
use tokio::sync::watch::Receiver;
use tracing::{debug, info, warn};

use conntrack::{NetfilterTimeouts, Raise};
pub use earlier::EarlierLoopback;
pub use error::Error;
use forwarding::ForwardingChanges;
use loopback::Loopback;
pub use routes::FrontendNetworks;

/// Interval of checks: `sysctl --system` and network managers restore their own values. Only those of forwarding are
/// notified by the kernel.
const AGAIN: Duration = Duration::from_secs(30);

/// Opens a netlink connection; its task ends with the handle.
fn connect() -> Result<rtnetlink::Handle, Error> {
    let (connection, handle, _messages) =
        rtnetlink::new_connection().map_err(|error| Error::System("netlink socket", error))?;
    drop(tokio::spawn(connection));
    Ok(handle)
}

/// Makes the loopback interface accept what the programs send there.
///
/// With `serves_loopback`, `NodePorts` are served on 127.0.0.0/8. Without `needs_v6`, the setting of IPv6 stays as it
/// is; `/proc/sys` may be read-only in a container.
pub async fn open_loopback(
    earlier: &mut EarlierLoopback,
    serves_loopback: bool,
    needs_v6: bool,
) -> Result<(), Error> {
    let handle = connect()?;
    let now = Loopback::read(&handle).await?;
    let wanted = now.opened(serves_loopback, needs_v6);
    if now != wanted {
        earlier.keep(now);
    }
    // Saved before the write, so that cleanup can restore the settings after a crash. If that fails, host processes are
    // served all the same.
    earlier.save();
    if now != wanted {
        wanted.write(&handle).await?;
        wanted.write_v6(now)?;
        info!(?now, ?wanted, "loopback interface configured for packets of host processes");
    }
    Ok(())
}

/// Prepares the routing of packets of host processes, before any of them is served.
pub async fn prepare_routing() -> Result<(), Error> {
    routes::prepare(&connect()?).await
}

/// Keeps routes, neighbour entries and the loopback interface as they must be, until the sender of frontends is
/// dropped. As long as the frontends are not known, the routes of an earlier run stay.
pub async fn follow(
    frontends: Receiver<Option<FrontendNetworks>>,
    earlier: EarlierLoopback,
    serves_loopback: bool,
    timeouts: NetfilterTimeouts,
) {
    let for_neighbours = frontends.clone();
    tokio::select! {
        never = neighbours::follow(for_neighbours) => match never {},
        () = follow_settings(frontends, earlier, serves_loopback, timeouts) => {}
    }
}

/// Keeps the routes, the loopback interface and the timeouts of netfilter.
async fn follow_settings(
    mut frontends: Receiver<Option<FrontendNetworks>>,
    mut earlier: EarlierLoopback,
    serves_loopback: bool,
    timeouts: NetfilterTimeouts,
) {
    let mut failed = [false; 2];
    // The subscription precedes the first check, so that no change falls between them.
    let mut changes = match ForwardingChanges::follow() {
        Ok(changes) => Some(changes),
        Err(error) => {
            debug!(%error, "changes of forwarding are found by the periodic check only");
            None
        }
    };
    loop {
        let wanted = frontends.borrow_and_update().clone();
        let needs_v6 = wanted.as_ref().is_some_and(|wanted| wanted.sources.v6.is_some());
        // The routes are set even if the loopback interface failed here: it may be as needed already.
        let opened = open_loopback(&mut earlier, serves_loopback, needs_v6).await;
        let routed = match &wanted {
            Some(wanted) => set_routes(wanted).await,
            None => Ok(()),
        };
        // The files of the timeouts may appear, with the kernel's defaults, long after the agent has started.
        timeouts.raise().iter().for_each(Raise::log);
        for (result, failed) in [opened, routed].into_iter().zip(&mut failed) {
            match result {
                Ok(()) => *failed = false,
                Err(error) if !*failed => {
                    *failed = true;
                    let error = crate::chain(&error);
                    warn!(error, "host processes may not reach all frontends; retrying");
                }
                Err(_) => {}
            }
        }
        tokio::select! {
            changed = frontends.changed() => if changed.is_err() { return },
            // A host process loses datagrams until the loopback interface forwards again.
            Some(stopped) = OptionFuture::from(changes.as_mut().map(ForwardingChanges::stops)) => {
                if let Err(error) = stopped {
                    debug!(%error, "changes of forwarding are no longer followed");
                    changes = None;
                }
            }
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

async fn set_routes(wanted: &FrontendNetworks) -> Result<(), Error> {
    let handle = connect()?;
    routes::set(&handle, wanted).await
}

/// Removes the routes to frontends, restores the earlier settings, and removes their files.
///
/// `has_successor`: kube-proxy's rules are in place, which needs the timeouts of netfilter and sets them at its start
/// only. Returns one line for each thing that was removed or restored. Must not be called inside a runtime.
pub fn restore(
    record: &Path,
    timeouts: &Path,
    has_successor: bool,
) -> Result<Vec<&'static str>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::System("runtime", error))?;
    runtime.block_on(async {
        let handle = connect()?;
        let mut done = Vec::new();
        if routes::remove(&handle).await? {
            done.push("removed routes to frontends");
        }
        if neighbours::remove(&handle).await? {
            done.push("removed neighbour entries of frontends");
        }
        if let Some(before) = Loopback::recorded(record) {
            let now = Loopback::read(&handle).await?;
            before.write(&handle).await?;
            before.write_v6(now)?;
            // The file is removed only after the settings are restored, so that an interrupted run can be repeated.
            record::remove(record)?;
            done.push("restored settings of the loopback interface");
        } else if Loopback::read(&handle).await.is_ok_and(Loopback::accepts_local) {
            done.push("left settings of the loopback interface: no earlier ones are saved");
        }
        if has_successor {
            if conntrack::hand_over(timeouts)? {
                done.push("kept timeouts of netfilter for kube-proxy");
            }
        } else if conntrack::restore(timeouts)? {
            done.push("restored timeouts of netfilter");
        }
        Ok(done)
    })
}
