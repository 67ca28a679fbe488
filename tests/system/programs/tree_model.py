"""A filesystem in memory: what an ideal one answers to root. Methods take absolute paths ("/a/b") and raise OSError with the errno that POSIX
(and Linux where it leaves a choice) asks for. Times are not modelled. Not thread-safe."""
import errno
import stat


class Node:
    def __init__(self, kind, mode):
        self.kind, self.mode, self.nlink = kind, mode, 1
        self.data = bytearray() if kind == "file" else None
        self.children = {} if kind == "dir" else None
        self.target = None
        self.xattrs = {}
        if kind == "dir":
            self.nlink = 2

    def st_mode(self):
        return {"file": stat.S_IFREG, "dir": stat.S_IFDIR, "link": stat.S_IFLNK}[self.kind] | self.mode


def refuse(code):
    raise OSError(code, errno.errorcode[code])


class Model:
    def __init__(self):
        self.root = Node("dir", 0o755)

    # Finding

    def parent(self, path):
        """The directory that holds the last name of `path`, and that name. All symbolic links here point to nothing."""
        *directories, name = path.strip("/").split("/")
        node = self.root
        for part in directories:
            if part not in node.children:
                refuse(errno.ENOENT)
            node = node.children[part]
            if node.kind != "dir":
                refuse(errno.ENOENT if node.kind == "link" else errno.ENOTDIR)
        return node, name

    def find(self, path):
        if path == "/":
            return self.root
        parent, name = self.parent(path)
        if name not in parent.children:
            refuse(errno.ENOENT)
        return parent.children[name]

    def paths(self, node=None, prefix=""):
        """Every path with its node, the root first."""
        node = node or self.root
        yield prefix or "/", node
        if node.kind == "dir":
            for name, child in sorted(node.children.items()):
                yield from self.paths(child, f"{prefix}/{name}")

    # Making

    def add(self, path, node):
        parent, name = self.parent(path)
        if name in parent.children:
            refuse(errno.EEXIST)
        parent.children[name] = node
        if node.kind == "dir":
            parent.nlink += 1

    def create(self, path, mode):
        node = Node("file", mode)
        self.add(path, node)
        return node

    def mkdir(self, path, mode):
        self.add(path, Node("dir", mode))

    def symlink(self, path, target):
        node = Node("link", 0o777)
        node.target = target
        self.add(path, node)

    def link(self, old, new):
        node = self.find(old)
        parent, name = self.parent(new)
        if name in parent.children:
            refuse(errno.EEXIST)
        if node.kind == "dir":
            refuse(errno.EPERM)
        parent.children[name] = node
        node.nlink += 1

    # Removing and moving

    def detach(self, parent, name):
        node = parent.children.pop(name)
        if node.kind == "dir":
            parent.nlink -= 1
            node.nlink = 0
        else:
            node.nlink -= 1

    def unlink(self, path):
        parent, name = self.parent(path)
        if self.find(path).kind == "dir":
            refuse(errno.EISDIR)
        self.detach(parent, name)

    def rmdir(self, path):
        parent, name = self.parent(path)
        node = self.find(path)
        if node.kind != "dir":
            refuse(errno.ENOTDIR)
        if node.children:
            refuse(errno.ENOTEMPTY)
        self.detach(parent, name)

    def rename(self, old, new):
        old_parent, old_name = self.parent(old)
        new_parent, new_name = self.parent(new)
        node = self.find(old)
        target = new_parent.children.get(new_name)
        if node.kind == "dir" and (new + "/").startswith(old + "/") and new != old:
            refuse(errno.EINVAL)
        if target is not None and (old + "/").startswith(new + "/") and new != old:
            refuse(errno.ENOTEMPTY)
        if target is node:
            return
        if target is not None:
            self.check_replace(node, target)
            self.detach(new_parent, new_name)
        del old_parent.children[old_name]
        new_parent.children[new_name] = node
        if node.kind == "dir":
            old_parent.nlink -= 1
            new_parent.nlink += 1

    @staticmethod
    def check_replace(node, target):
        if node.kind == "dir" and target.kind != "dir":
            refuse(errno.ENOTDIR)
        if node.kind != "dir" and target.kind == "dir":
            refuse(errno.EISDIR)
        if target.kind == "dir" and target.children:
            refuse(errno.ENOTEMPTY)

    # Content and attributes

    def file(self, path):
        node = self.find(path)
        if node.kind == "dir":
            refuse(errno.EISDIR)
        if node.kind == "link":
            refuse(errno.ELOOP)  # opened with O_NOFOLLOW
        return node

    @staticmethod
    def write(node, offset, data):
        if len(node.data) < offset:
            node.data.extend(bytes(offset - len(node.data)))
        node.data[offset:offset + len(data)] = data

    @staticmethod
    def truncate(node, size):
        del node.data[size:]
        node.data.extend(bytes(size - len(node.data)))

    @staticmethod
    def punch(node, offset, length):
        end = min(offset + length, len(node.data))
        if offset < end:
            node.data[offset:end] = bytes(end - offset)
