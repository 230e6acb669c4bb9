//! Checksums that interfaces compute over all bytes of a received packet (`CHECKSUM_COMPLETE`).
//!
//! A program that changes bytes must adjust this sum; otherwise the stack logs a hardware checksum failure and computes
//! the sum itself.

use anyhow::Result;
use lb_common::event::{Hook, Verdict};
use lb_common::fake::{Fake, Step, run};

use super::bpf;
use super::kernel::Kernel;

/// Runs packets through the kernel's programs and returns, for each packet that a stack gets, whether its checksum is
/// right afterwards. Requires [`Kernel::reports_checksums`].
pub fn sums<'a>(
    kernel: &mut Kernel,
    tables: &Fake,
    steps: &'a [Step],
) -> Result<Vec<(&'a Step, bool)>> {
    let host = tables.clone();
    kernel.load(&host)?;
    let mut sums = Vec::new();
    for step in steps {
        host.clock.set(bpf::now());
        // An XDP frame has no checksum field, so it is only run for its effect on the flow.
        let is_right = if step.hook == Hook::ExternalXdp {
            kernel.run(step)?.map(|_| None)
        } else {
            kernel.sum_stays_right(step)?.map(Some)
        };
        let Some(is_right) = is_right else { continue };
        // The checksum of a packet that goes back where it came from, such as a rejection, is never read. The stack of
        // a pod reads that of a packet that was sent there.
        let (verdict, _) = run(step, &host);
        if matches!(verdict, Verdict::Pass(_) | Verdict::Translated(_) | Verdict::Redirected(_)) {
            sums.extend(is_right.map(|is_right| (step, is_right)));
        }
    }
    Ok(sums)
}
