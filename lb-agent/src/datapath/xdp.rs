//! The XDP program of an interface: in driver mode, pinned, and never together with another XDP program. Without it tc
//! handles every packet.
//!
//! It is an accelerator, never required: a failure here is a reason in `status`, not an error.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use super::detach::detach_and_unpin;
use super::error::Error;
use super::pins::of_xdp;
use crate::syscall;

/// The reason for operators if another XDP program is attached; the agent tries again later.
pub const OCCUPIED: &str = "another XDP program is attached; it is left alone";

/// Attaches the program to an interface, or replaces an earlier run's. The error says why it is not attached.
pub(super) fn attach(links: &Path, program: BorrowedFd<'_>, index: u32) -> Result<OwnedFd, String> {
    let path = of_xdp(links, index);
    if let Ok(link) = syscall::open_pin(&path) {
        let is_ours = syscall::link_info(link.as_fd()).is_ok_and(|info| info.device() == index);
        // An update of the link lets no packet pass without a program.
        if is_ours && syscall::update_link(link.as_fd(), program).is_ok() {
            return Ok(link);
        }
    }
    // The pin may lead to a link whose interface is gone, and would be in the way of the new pin.
    detach(links, index).map_err(|error| error.to_string())?;
    let link = syscall::link_xdp(program, index).map_err(|error| reason(&error))?;
    // Unlike a tcx link, this one is not kept without a pin: it ends with its descriptor, and tc handles every packet.
    let pinned = syscall::pin(link.as_fd(), &path);
    pinned.map_err(|error| format!("pin {}: {error}", path.display()))?;
    Ok(link)
}

/// Detaches the program from an interface, if it is there. No new packet meets it when this returns: tc programs may
/// take packets for untranslated ones from now on (ADR 0012).
pub(super) fn detach(links: &Path, index: u32) -> Result<(), Error> {
    detach_and_unpin(&of_xdp(links, index))
}

/// Explains the kernel's refusal to operators.
fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => OCCUPIED.to_owned(),
        Some(libc::EOPNOTSUPP) => "its driver does not support XDP".to_owned(),
        // Drivers use different codes for the same two causes.
        Some(libc::EINVAL | libc::ERANGE | libc::ENOSPC | libc::ENOMEM) => {
            format!("its driver refuses, because of the MTU or the number of queues: {error}")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_xdp_has_a_reason() {
        let said = |code| reason(&io::Error::from_raw_os_error(code));
        assert_eq!(said(libc::EBUSY), OCCUPIED);
        assert_eq!(said(libc::EOPNOTSUPP), "its driver does not support XDP");
        assert!(said(libc::ERANGE).starts_with("its driver refuses"));
        assert!(said(libc::EPERM).contains("not permitted"));
    }
}
