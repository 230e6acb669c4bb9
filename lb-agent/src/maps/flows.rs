//! Halves of flows, each in the table of its family, while packets write them, too.

use std::os::fd::AsFd as _;

use aya::Pod;
use aya::maps::{HashMap, MapData, MapError};
use lb_common::flow::{Flow, Flow4, FlowKey, FlowKey4};

use super::raw::Raw;
use super::{Error, MapHandle as _, Maps, Result, batched, walk};
use crate::syscall;

/// The table of IPv4.
const V4: &str = "FLOWS4";
/// That of IPv6 and sockets.
const V6: &str = "FLOWS6";

impl Maps {
    /// Calls `see` for every half.
    pub fn flows(&self, mut see: impl FnMut(&FlowKey, &Flow)) -> Result<()> {
        let zero = (Raw::default(), Raw::default());
        let walked = walk::walk(self.flows4.data(), zero, |key: &Raw<FlowKey4>, flow| {
            let flow: &Raw<Flow4> = flow;
            see(&key.0.whole(), &flow.0.whole());
            true
        });
        walked.map_err(batched(V4))?;
        let zero = (Raw::default(), Raw::default());
        let walked = walk::walk(self.flows6.data(), zero, |key: &Raw<FlowKey>, flow| {
            let flow: &Raw<Flow> = flow;
            see(&key.0, &flow.0);
            true
        });
        walked.map_err(batched(V6))
    }

    /// One half, if it is still there.
    pub fn flow(&self, key: &FlowKey) -> Result<Option<Flow>> {
        if key.is_v4() {
            let flow = get(&self.flows4, &Raw(FlowKey4::of(key)), V4)?;
            return Ok(flow.map(|flow| flow.0.whole()));
        }
        Ok(get(&self.flows6, &Raw(*key), V6)?.map(|flow| flow.0))
    }

    /// Removes a half, if it is there, and gives what it was at that moment.
    pub fn take_flow(&self, key: &FlowKey) -> Result<Option<Flow>> {
        if key.is_v4() {
            let flow = take(&self.flows4, &Raw(FlowKey4::of(key)), V4)?;
            return Ok(flow.map(|flow| flow.0.whole()));
        }
        Ok(take(&self.flows6, &Raw(*key), V6)?.map(|flow| flow.0))
    }

    /// Puts a half back that was taken, unless a packet has made it anew meanwhile, or has the room it had.
    pub fn restore_flow(&self, key: &FlowKey, flow: &Flow) -> Result<()> {
        self.write_flow(key, flow, walk::NO_EXIST, &[libc::EEXIST, libc::E2BIG])
    }

    /// Writes over a half, if it is there.
    pub fn replace_flow(&self, key: &FlowKey, flow: &Flow) -> Result<()> {
        self.write_flow(key, flow, walk::EXIST, &[libc::ENOENT])
    }

    /// Removes halves.
    pub fn remove_flows(&self, keys: &[FlowKey]) -> Result<()> {
        let (v4, v6): (Vec<FlowKey>, Vec<FlowKey>) = keys.iter().partition(|key| key.is_v4());
        let v4: Vec<Raw<FlowKey4>> = v4.iter().map(|key| Raw(FlowKey4::of(key))).collect();
        walk::remove(self.flows4.data(), &v4).map_err(batched(V4))?;
        let v6: Vec<Raw<FlowKey>> = v6.into_iter().map(Raw).collect();
        walk::remove(self.flows6.data(), &v6).map_err(batched(V6))
    }

    fn write_flow(&self, key: &FlowKey, flow: &Flow, flags: u64, fine: &[i32]) -> Result<()> {
        let (map, written) = if key.is_v4() {
            let (key, flow) = (Raw(FlowKey4::of(key)), Raw(Flow4::of(flow)));
            (V4, syscall::update(self.flows4.data().fd().as_fd(), &key, &flow, flags))
        } else {
            let fd = self.flows6.data().fd().as_fd();
            (V6, syscall::update(fd, &Raw(*key), &Raw(*flow), flags))
        };
        match written {
            Err(error) if !error.raw_os_error().is_some_and(|code| fine.contains(&code)) => {
                Err(batched(map)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn get<K: Pod, V: Pod>(
    from: &HashMap<MapData, K, V>,
    key: &K,
    map: &'static str,
) -> Result<Option<V>> {
    match from.get(key, 0) {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(source) => Err(Error::Map { map, source }),
    }
}

fn take<K: Pod, V: Pod + Default>(
    from: &HashMap<MapData, K, V>,
    key: &K,
    map: &'static str,
) -> Result<Option<V>> {
    let mut value = V::default();
    match syscall::take(from.data().fd().as_fd(), key, &mut value) {
        Ok(()) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(source) => Err(batched(map)(source)),
    }
}
