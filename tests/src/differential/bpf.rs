//! The raw bpf(2) calls that the differential test needs: map batches and test runs. aya has no batches, and a test run
//! through aya takes more than two microseconds longer.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use lb_agent::syscall::attributes::{Batch, Element, Info, bpf};

pub mod foreign;

const LOOKUP: u32 = 1;
const UPDATE: u32 = 2;
const DELETE: u32 = 3;
const LOAD: u32 = 5;
const TEST_RUN: u32 = 10;
const OBJECT_INFO: u32 = 15;
const LOOKUP_BATCH: u32 = 24;
const TAKE_BATCH: u32 = 25;

/// A type without padding and with `repr(C)`, of which any bytes are a valid value.
pub trait Plain: Copy + Default {}

macro_rules! plain {
    ($($type:ty)*) => { $(impl Plain for $type {})* };
}

plain! {
    u32 u64 [u32; 2] lb_common::addr::Ip lb_common::config::SettingsPair lb_common::config::Device
    lb_common::service::Frontend lb_common::service::Service lb_common::service::Backend
    lb_common::flow::FlowKey4 lb_common::flow::Flow4
    lb_common::flow::FlowKey lb_common::flow::Flow lb_common::flow::Client
    lb_common::flow::Affinity lb_common::flow::Held lb_common::flow::Fragment lb_common::flow::Ports
    Trie Line Context
}

/// A line of `MAGLEV`, 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Line(pub [u8; 64]);

impl Default for Line {
    fn default() -> Self {
        Self([0; 64])
    }
}

/// A key of `SOURCE_RANGES`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Trie {
    /// The length of the prefix, in bits.
    pub bits: u32,
    /// The bytes of the key.
    pub key: [u32; 6],
}

/// The fields of `struct __sk_buff` that a test run can set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Context(pub [u32; 48]);

impl Default for Context {
    fn default() -> Self {
        Self([0; 48])
    }
}

#[repr(C)]
#[derive(Default)]
struct Test {
    program: u32,
    code: u32,
    size_in: u32,
    size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    pad: u32,
}

fn call<T>(command: u32, attributes: &mut T) -> io::Result<()> {
    // SAFETY: whole, initialised `bpf_attr`s; the addresses inside point to values that the callers borrow.
    unsafe { bpf(command, attributes) }.map(drop)
}

fn pointer<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// Writes an element of a map.
pub fn put<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    let mut element = Element {
        map: number(map),
        key: pointer(key),
        value: pointer(value),
        ..Element::default()
    };
    call(UPDATE, &mut element)
}

/// Reads an element of a map.
pub fn get<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: &K) -> io::Result<V> {
    let value = V::default();
    let mut element = Element {
        map: number(map),
        key: pointer(key),
        value: pointer(&value),
        ..Element::default()
    };
    call(LOOKUP, &mut element)?;
    // SAFETY: the kernel wrote it behind the compiler's back; plain bytes, any of them a value.
    Ok(unsafe { std::ptr::read_volatile(&raw const value) })
}

/// Removes an element of a map, if it exists.
pub fn remove<K: Plain>(map: BorrowedFd<'_>, key: &K) {
    let mut element = Element { map: number(map), key: pointer(key), ..Element::default() };
    let _gone: io::Result<()> = call(DELETE, &mut element);
}

/// Reads the elements of an array map from element 0 on. A per-CPU array has several values for each element.
pub fn array(map: BorrowedFd<'_>, count: u32, values: &mut [u64]) -> io::Result<()> {
    let mut keys = vec![0_u32; count as usize];
    let mut to = 0_u32;
    let mut batch = Batch {
        to: std::ptr::from_mut(&mut to) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count,
        map: number(map),
        ..Batch::default()
    };
    match call(LOOKUP_BATCH, &mut batch) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Reads all entries of a hash map, and removes them if `take`.
pub fn entries<K: Plain, V: Plain>(map: BorrowedFd<'_>, take: bool) -> io::Result<Vec<(K, V)>> {
    let size = (1 << 20) / size_of::<V>().max(256);
    let mut keys = vec![K::default(); size];
    let mut values = vec![V::default(); size];
    let (mut all, mut from, mut to) = (Vec::new(), 0_u64, 0_u64);
    loop {
        let mut batch = Batch {
            from: if all.is_empty() { 0 } else { std::ptr::from_mut(&mut from) as u64 },
            to: std::ptr::from_mut(&mut to) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: size as u32,
            map: number(map),
            ..Batch::default()
        };
        let result = call(if take { TAKE_BATCH } else { LOOKUP_BATCH }, &mut batch);
        let count = batch.count as usize;
        match result {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            ended => {
                all.extend(keys.iter().copied().zip(values.iter().copied()).take(count));
                if ended.is_err() || count == 0 {
                    return Ok(all);
                }
                from = to;
            }
        }
    }
}

/// The first fields of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: u64,
    jited_length: u32,
    length: u32,
    jited: u64,
    instructions: u64,
}

/// Reads the translated instructions of a program.
pub fn instructions(program: BorrowedFd<'_>) -> io::Result<Vec<[u8; 8]>> {
    let ask = |info: &mut ProgramInfo| {
        let length = size_of::<ProgramInfo>() as u32;
        let info = std::ptr::from_mut(info) as u64;
        call(OBJECT_INFO, &mut Info { object: number(program), length, info })
    };
    let mut info = ProgramInfo::default();
    ask(&mut info)?;
    let mut code = vec![[0_u8; 8]; info.length as usize / 8];
    let instructions = code.as_mut_ptr() as u64;
    info = ProgramInfo { length: info.length, instructions, ..ProgramInfo::default() };
    ask(&mut info)?;
    Ok(code)
}

/// The result of a test run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The return code of the program.
    pub code: u32,
    /// The mean time of a run, in nanoseconds.
    pub nanoseconds: u32,
    /// The length of the output packet, in bytes.
    pub length: usize,
}

/// Runs a program on a packet, `repeat` times.
pub fn test_run(
    program: BorrowedFd<'_>,
    packet: &[u8],
    out: &mut [u8],
    context: Option<&Context>,
    repeat: u32,
) -> io::Result<Ran> {
    let mut test = test(program, packet, context);
    test.size_out = out.len() as u32;
    test.data_out = if out.is_empty() { 0 } else { out.as_mut_ptr() as u64 };
    test.repeat = repeat;
    call(TEST_RUN, &mut test)?;
    Ok(Ran { code: test.code, nanoseconds: test.duration, length: test.size_out as usize })
}

/// Runs a program once on a packet with `CHECKSUM_COMPLETE`, and returns whether the checksum of all bytes is still
/// right afterwards. Needs Linux 6.11; older kernels return `EINVAL`.
pub fn sum_stays_right(
    program: BorrowedFd<'_>,
    packet: &[u8],
    context: &Context,
) -> io::Result<bool> {
    /// `BPF_F_TEST_SKB_CHECKSUM_COMPLETE` of `linux/bpf.h`.
    const SUMMED: u32 = 4;
    let mut test = test(program, packet, Some(context));
    test.flags = SUMMED;
    match call(TEST_RUN, &mut test) {
        Err(error) if error.raw_os_error() == Some(libc::EBADMSG) => Ok(false),
        ran => ran.map(|()| true),
    }
}

fn test(program: BorrowedFd<'_>, packet: &[u8], context: Option<&Context>) -> Test {
    Test {
        program: number(program),
        size_in: packet.len() as u32,
        data_in: packet.as_ptr() as u64,
        repeat: 1,
        context_in: context.map_or(0, pointer),
        context_size_in: context.map_or(0, |context| size_of_val(context) as u32),
        ..Test::default()
    }
}

/// The first fields of `bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    length: u32,
    instructions: u64,
    license: u64,
    pad: [u32; 11],
    /// The type of attachment that the program expects.
    attachment: u32,
}

/// A program that returns `bpf_jiffies64()`, the clock of `Tables::tick`, which no file in /proc shows.
pub fn load_jiffies() -> io::Result<OwnedFd> {
    // Calls helper 118 (`bpf_jiffies64`), and returns its result.
    load_tc(&[[0x85, 0, 0, 0, 118, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]])
}

fn load_tc(code: &[[u8; 8]]) -> io::Result<OwnedFd> {
    /// `BPF_PROG_TYPE_SCHED_CLS`.
    const TC: u32 = 3;
    load((TC, 0), code)
}

fn load((kind, attachment): (u32, u32), code: &[[u8; 8]]) -> io::Result<OwnedFd> {
    let mut load = Load {
        kind,
        attachment,
        length: code.len() as u32,
        instructions: code.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        ..Load::default()
    };
    // SAFETY: as in `call`.
    let fd = unsafe { bpf(LOAD, &mut load) }?;
    // SAFETY: the kernel has just created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The program's result: the lower 32 bits of the jiffies.
pub fn jiffies(program: BorrowedFd<'_>) -> io::Result<u32> {
    test_run(program, &[0; 64], &mut [], None, 1).map(|ran| ran.code)
}

/// The coarse monotonic clock in nanoseconds, which the programs use as well.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time);
    }
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Writes an element of a per-CPU array: one value for each CPU.
pub fn put_values(map: BorrowedFd<'_>, key: u32, values: &[u64]) -> io::Result<()> {
    let mut element = Element {
        map: number(map),
        key: pointer(&key),
        value: values.as_ptr() as u64,
        ..Element::default()
    };
    call(UPDATE, &mut element)
}
