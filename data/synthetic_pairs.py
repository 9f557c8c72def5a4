VERSION = 0


def write_pairs(path):
    raise NotImplementedError
