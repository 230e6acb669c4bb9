//! A capture of every frame on one interface, from its start on.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::frame::Frame;
use super::raw::packet_socket;
use crate::join_all::locked;
use crate::netns::Netns;
use crate::wait::wait_until;

/// Larger than any frame between namespaces: GSO packets have up to 64 KiB, plus headers.
const LARGEST: usize = 70_000;
/// The interval in milliseconds at which the capture checks whether it should end.
const LOOK_UP: u16 = 20;
/// The deadline for the kernel to deliver a frame that has passed.
const ARRIVAL: Duration = Duration::from_secs(15);

/// A running capture; dropping it ends it.
#[derive(Debug)]
pub struct Capture {
    queue: Arc<Queue>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The kernel's queue of frames, and the frames that were taken from it.
#[derive(Debug)]
struct Queue {
    socket: OwnedFd,
    frames: Mutex<Vec<Frame>>,
}

impl Queue {
    /// Takes all frames that have passed so far. A frame is in the kernel's queue before its receiver sees it.
    fn taken(&self) -> MutexGuard<'_, Vec<Frame>> {
        let mut frames = locked(&self.frames);
        let mut buffer = vec![0; LARGEST];
        while let Ok(frame) = receive(&self.socket, &mut buffer) {
            frames.push(frame);
        }
        frames
    }
}

impl Capture {
    /// Starts to capture frames of both directions on interface `device` of the namespace.
    pub fn start(netns: &Netns, device: &str) -> Result<Self> {
        let socket = netns.run_in(|| listen(device))?;
        let socket = socket.with_context(|| format!("capture on {device} of {}", netns.name()))?;
        let queue = Arc::new(Queue { socket, frames: Mutex::default() });
        let stop = Arc::new(AtomicBool::new(false));
        let (from, flag) = (Arc::clone(&queue), Arc::clone(&stop));
        let thread = thread::spawn(move || collect(&from, &flag));
        Ok(Self { queue, stop, thread: Some(thread) })
    }

    /// Returns the frames so far that `which` accepts.
    pub fn frames(&self, which: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        self.queue.taken().iter().filter(|frame| which(frame)).cloned().collect()
    }

    /// Counts the frames so far that `which` accepts.
    pub fn count(&self, which: impl Fn(&Frame) -> bool) -> usize {
        self.frames(which).len()
    }

    /// Waits for the first frame that `which` accepts, and returns it.
    pub fn wait_for(&self, what: &str, which: impl Fn(&Frame) -> bool) -> Result<Frame> {
        wait_until(ARRIVAL, what, || self.frames(&which).into_iter().next())
    }

    /// Fails if a frame has a wrong checksum, or if no frame was captured.
    pub fn ensure_checksums(&self) -> Result<()> {
        let frames = self.frames(|frame| frame.protocol().is_some());
        ensure!(!frames.is_empty(), "nothing was captured");
        for frame in frames {
            let wrong = frame.wrong_checksums();
            let (from, to) = (frame.source(), frame.destination());
            let way = if frame.outgoing { "out" } else { "in" };
            ensure!(wrong.is_empty(), "{way}, {from:?} to {to:?}: {}", wrong.join(", "));
        }
        Ok(())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Empties the kernel's queue regularly, so that it does not overflow.
fn collect(queue: &Queue, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut waiting = [PollFd::new(queue.socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut waiting, LOOK_UP).is_ok_and(|ready| ready > 0) {
            drop(queue.taken());
        }
    }
}

fn listen(device: &str) -> io::Result<OwnedFd> {
    let socket = packet_socket(device, libc::ETH_P_ALL as u16)?;
    setsockopt(&socket, sockopt::RcvBuf, &(16 << 20))?;
    let on: libc::c_int = 1;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_AUXDATA);
    // SAFETY: the value is an int that lives during the call, and the size is its own.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), size)
    };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// The buffer for the control message of one frame, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 128]);

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Frame> {
    let mut control = Control([0; 128]);
    // SAFETY: all zeroes is a valid address of length 0.
    let mut from: libc::sockaddr_ll = unsafe { zeroed() };
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeroes is a valid empty message.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: every pointer of the message names a live buffer of the length beside it.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let Ok(length) = usize::try_from(length) else {
        return Err(io::Error::last_os_error());
    };
    let auxiliary = auxiliary(&message);
    let status = auxiliary.map_or(0, |auxiliary| auxiliary.tp_status);
    let tag = auxiliary.map(|auxiliary| auxiliary.tp_vlan_tci);
    Ok(Frame {
        bytes: buffer.get(..length).unwrap_or_default().to_vec(),
        // Set if the transport checksum is not computed yet.
        partial: status & libc::TP_STATUS_CSUMNOTREADY != 0,
        outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
        tag: tag.filter(|_| status & libc::TP_STATUS_VLAN_VALID != 0),
    })
}

/// The kernel's auxiliary data of a frame (`PACKET_AUXDATA`).
fn auxiliary(message: &libc::msghdr) -> Option<libc::tpacket_auxdata> {
    // SAFETY: the message was filled by recvmsg; its control buffer is alive.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    if header.is_null() {
        return None;
    }
    // SAFETY: not null, so it points into the control buffer, which is aligned for it.
    let kind = unsafe { *header }.cmsg_type;
    if kind != libc::PACKET_AUXDATA {
        return None;
    }
    // SAFETY: a header of this kind is followed by its data.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: the kernel wrote a tpacket_auxdata there; it is read without claiming alignment.
    Some(unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() })
}
