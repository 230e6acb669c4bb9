//! What the sweep writes: single halves of flows, while packets write them, too.

use std::os::fd::AsFd as _;

use lb_common::flow::{Flow, FlowKey};

use super::raw::Raw;
use super::{MapHandle as _, Maps, Result, batched, walk};
use crate::syscall;

impl Maps {
    /// Removes a half, if it is there, and gives what it was at that moment.
    pub fn take_flow(&self, key: &FlowKey) -> Result<Option<Flow>> {
        let mut flow = Raw::<Flow>::default();
        match syscall::take(self.flows.data().fd().as_fd(), &Raw(*key), &mut flow) {
            Ok(()) => Ok(Some(flow.0)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(source) => Err(batched("FLOWS")(source)),
        }
    }

    /// Puts a half back that was taken, unless a packet has made it anew meanwhile, or has the room it had.
    pub fn restore_flow(&self, key: &FlowKey, flow: &Flow) -> Result<()> {
        self.write_flow(key, flow, walk::NO_EXIST, &[libc::EEXIST, libc::E2BIG])
    }

    /// Writes over a half, if it is there.
    pub fn replace_flow(&self, key: &FlowKey, flow: &Flow) -> Result<()> {
        self.write_flow(key, flow, walk::EXIST, &[libc::ENOENT])
    }

    fn write_flow(&self, key: &FlowKey, flow: &Flow, flags: u64, fine: &[i32]) -> Result<()> {
        let fd = self.flows.data().fd().as_fd();
        match syscall::update(fd, &Raw(*key), &Raw(*flow), flags) {
            Err(error) if !error.raw_os_error().is_some_and(|code| fine.contains(&code)) => {
                Err(batched("FLOWS")(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
