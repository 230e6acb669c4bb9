//! Connections that both ends close at once, and downloads after a half-close: each end reads all bytes, and none sends a
//! reset.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::manifest::Service;
use lb_tests::topology::Family;
use lb_tests::traffic::closing::{self, Path};
use lb_tests::wait::wait_until_ok;

use super::Life;

const NAMES: [&str; 2] = ["life-near-ends", "life-far-ends"];
const NODE_PORTS: [u16; 2] = [30_073, 30_074];
/// The port of the servers of this trial: the peers of the pods listen at another one.
const PORT: u16 = 9_100;
/// The length in bytes of a download.
const DOWNLOAD: usize = 1 << 20;
/// The numbers of connections of each path that both ends close, and of its downloads.
const CLOSED: u32 = 20;
const DOWNLOADS: u32 = 3;
/// The deadline for packets to follow a new Service.
const SOON: Duration = Duration::from_secs(30);

/// By `ClusterIP` and `NodePort`, to a near and to a far backend.
pub(crate) fn lose_no_byte(life: &Life<'_>) -> Result<()> {
    let all = paths(life)?;
    Path::patient_ends(&all, closing::PATIENCE)?;
    for path in &all {
        let before = path.resets()?;
        (0..CLOSED).try_for_each(|_| path.both_close_at_once())?;
        (0..DOWNLOADS).try_for_each(|_| path.half_close(DOWNLOAD))?;
        let sent = path.resets()? - before;
        ensure!(sent == 0, "{} to {}: {sent} resets", path.client.name(), path.to);
    }
    Path::patient_ends(&all, closing::USUAL_PATIENCE)
}

/// Publishes the Services, and returns their paths once packets follow them.
fn paths<'a>(life: &'a Life<'_>) -> Result<Vec<Path<'a>>> {
    let (rig, mut all) = (life.rig(), Vec::new());
    for (node, (name, number)) in NAMES.into_iter().zip(NODE_PORTS).enumerate() {
        let backend = rig.pod(node, 1)?;
        let service = Service::new(name, 217 + node as u8)?.port(80, PORT).node_port(number);
        let service = service.pods(&[backend]);
        life.server.publish(&service.objects())?;
        for family in Family::ALL {
            let [inside, outside] = Path::all(rig, (&service, number), (backend, PORT), family)?;
            // The node refuses an unknown NodePort, so no attempt waits; the ClusterIP follows with it.
            wait_until_ok(SOON, "the NodePort is served", || outside.connect().map(drop))?;
            all.extend([inside, outside]);
        }
    }
    Ok(all)
}
